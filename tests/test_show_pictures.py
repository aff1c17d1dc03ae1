"""Pictures of small rows, asserted cell by cell: what is right, what leaks, what is lost, and what stands in slots."""

import json
import re
from importlib import import_module

import pytest
import torch

import hermetic
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import AuditError, BoundariesError
from hermetic.show import BACKENDS

FIVE = """\
2 documents, 5 tokens
documents given by their lengths

document  0  0 |1  1  1
slot      0  1 |2  3  4
position  0  1 |0  1  2

As it should be    Plain causal mask        FlexAttention
9 cells read       15 cells read: 6 leak    9 cells read
  0 1 2 3 4          0 1 2 3 4                0 1 2 3 4
0 # . . . .        0 # . . . .              0 # . . . .
1 # # . . .        1 # # . . .              1 # # . . .
2 . . # . .        2 X X # . .              2 . . # . .
3 . . # # .        3 X X # # .              3 . . # # .
4 . . # # #        4 X X # # #              4 . . # # #

# read, of its own document
X leak: read, but of another document
"""

KIND_LETTERS = {"own": "#", "leak": "X", "lost": "o", "beyond": "+", "idle": ":"}


def drawn(mask):
    """A picture of cells as lines: '#' own, 'X' leak, 'o' lost, '+' beyond, ':' idle."""
    found = [[mask.kind_of(query, key) for key in range(mask.blocks)] for query in range(mask.blocks)]
    return ["".join("." if one is None else KIND_LETTERS[one[0]] for one in line) for line in found]


def batch_of(*documents, pad_to=None):
    return hermetic.collate([{"input_ids": ids} for ids in documents], pad_to=pad_to)


def test_documents_of_2_and_3_tokens_are_this_picture():
    assert hermetic.show([2, 3]).text(width=100) == FIVE


def test_every_way_to_say_the_same_documents_is_the_same_picture():
    expected = ["#....", "##...", "..#..", "..##.", "..###"]
    boundaries = hermetic.Boundaries.from_lengths([2, 3])
    batch = batch_of([5, 6], [7, 8, 9])
    rows = [
        {"document_ids": [[0, 0, 1, 1, 1]]},
        {"seq_idx": torch.tensor([[0, 0, 1, 1, 1]], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([0, 2, 5], dtype=torch.int32)},
        {"position_ids": [[0, 1, 0, 1, 2]]},
        {"seq_lengths": [[2, 3]]},
        {"attention_mask": [[1, 1, 2, 2, 2]]},
    ]
    subjects = [[2, 3], (2, 3), torch.tensor([2, 3]), boundaries, batch, batch.model_inputs()]
    subjects += [{"input_ids": [[5, 6, 7, 8, 9]], **said} for said in rows]

    assert [drawn(hermetic.show(subject).mask("boundaries")) for subject in subjects] == [expected] * len(subjects)


def test_documents_of_3_and_5_have_21_cells_and_a_plain_causal_mask_36_of_which_15_leak():
    picture = hermetic.show([3, 5])
    right, plain = picture.mask("boundaries"), picture.mask("causal")

    assert (right.total("own"), int(right.seen.sum()), int(plain.seen.sum())) == (21, 21, 36)
    assert int(plain.cells["leak"][3:8, 0:3].sum()) == plain.total("leak") == 15
    assert not right.seen[3:8, 0:3].any()
    assert right.seen.diagonal().all()
    assert (right.is_right, plain.is_right) == (True, False)


def test_a_window_of_4_counts_the_token_itself():
    mask = hermetic.show([7], window=4).mask("boundaries")

    assert mask.seen[6].nonzero()[0].tolist() == [3, 4, 5, 6]
    assert mask.seen[5].nonzero()[0].tolist() == [2, 3, 4, 5]


def test_a_window_that_no_document_reaches_changes_nothing():
    windowed, free = (hermetic.show([3, 3, 3], window=window).mask("boundaries") for window in (4, None))

    assert drawn(windowed) == drawn(free)
    assert windowed.total("own") == 18


def test_a_chunk_counts_from_the_start_of_the_document():
    assert drawn(hermetic.show([3, 4], chunk=2).mask("boundaries")) == [
        "#......", "##.....", "..#....", "...#...", "...##..", ".....#.", ".....##",
    ]  # fmt: skip


def test_without_causality_a_token_reads_its_whole_document():
    picture = hermetic.show([1, 2], causal=False)

    assert drawn(picture.mask("boundaries")) == ["#..", ".##", ".##"]
    assert drawn(picture.mask("causal")) == ["#XX", "X##", "X##"]


def test_a_padded_tail_is_one_more_segment_from_which_nobody_learns():
    picture = hermetic.show(batch_of([5, 6, 7], [8, 9, 4, 3, 2], pad_to=12))
    right, plain = picture.mask("boundaries"), picture.mask("causal")

    assert picture.document_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, -1, -1, -1, -1]
    assert picture.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]]
    assert (right.total("own"), right.total("idle")) == (21, 10)
    assert (plain.total("own"), plain.total("leak"), plain.total("idle")) == (21, 15, 78 - 36)
    assert right.is_right
    assert "2 documents, 8 tokens, 4 of padding" in picture.text()


def test_an_empty_document_is_listed_and_has_no_slot():
    picture = hermetic.show([3, 0, 2])

    assert [(one.number, one.start, one.length) for one in picture.documents] == [(0, 0, 3), (1, 3, 0), (2, 3, 2)]
    assert picture.document_ids.tolist() == [0, 0, 0, 2, 2]
    assert drawn(picture.mask("boundaries")) == ["#....", "##...", "###..", "...#.", "...##"]
    assert "3 documents, 5 tokens" in picture.text()


def test_slots_carry_tokens_positions_and_labels():
    picture = hermetic.show(batch_of([5, 6], [7, 8, 9]), backends=["causal"])

    assert picture.text().splitlines()[3:7] == [
        "document  0  0 |1  1  1",
        "token     5  6 |7  8  9",
        "position  0  1 |0  1  2",
        "label     -  6 |-  8  9",
    ]
    assert [one.supervised for one in picture.documents] == [1, 2]


def test_a_label_across_a_seam_and_positions_that_run_on_are_marked():
    inputs = {"input_ids": [[5, 6, 7, 8]], "labels": [[IGNORE_INDEX, 6, 7, 8]], "document_ids": [[0, 0, 1, 1]]}
    picture = hermetic.show(inputs)

    assert picture.firsts_with_label() == (2,)
    assert picture.moved_positions().tolist() == [False, False, True, True]
    assert picture.text().splitlines()[3:7] == [
        "document   0   0 | 1   1",
        "token      5   6 | 7   8",
        "position   0   1 |2!  3!",
        "label      -   6 |7!   8",
    ]
    sound = hermetic.show(inputs | {"labels": [[IGNORE_INDEX, 6, IGNORE_INDEX, 8]], "position_ids": [[0, 1, 0, 1]]})
    assert (sound.firsts_with_label(), "!" in sound.text()) == ((), False)


@pytest.mark.parametrize("row", [0, 1])
def test_rows_of_a_batch_are_drawn_one_at_a_time(row):
    positions = [[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]]
    picture = hermetic.show({"input_ids": [[5] * 6, [6] * 6], "position_ids": positions}, row=row)

    assert (picture.row, picture.num_rows, picture.ids.tolist()) == (row, 2, [5 + row] * 6)
    assert [one.length for one in picture.documents] == [[3, 3], [2, 2, 2]][row]
    assert f"row {row} of 0 to 1" in picture.text()


def test_planes_of_positions_are_drawn_apart_and_restart_together():
    planes = [[[0, 1, 1, 2, 0, 1, 1]], [[0, 1, 1, 2, 0, 1, 1]], [[0, 1, 2, 2, 0, 1, 2]]]
    picture = hermetic.show({"input_ids": [[5, 6, 7, 8, 9, 4, 3]], "position_ids": planes})

    assert [one.length for one in picture.documents] == [4, 3]
    assert picture.positions.tolist() == [plane[0] for plane in planes]
    assert not picture.moved_positions().any()
    assert [line.split()[:2] for line in picture.text().splitlines() if line.startswith("position")] == [
        ["position", "0"], ["position", "1"], ["position", "2"],
    ]  # fmt: skip


def test_json_holds_every_slot_and_every_count():
    picture = hermetic.show(batch_of([5, 6], [7, 8, 9]))
    plain = json.loads(picture.to_json())

    assert plain == picture.to_dict()
    assert plain["input_ids"] == [5, 6, 7, 8, 9]
    assert plain["labels"] == [-100, 6, -100, 8, 9]
    assert plain["masks"][1]["totals"] == {"own": 9, "leak": 6, "lost": 0, "beyond": 0, "idle": 0}
    assert plain["masks"][1]["cells"]["leak"] == [[0] * 5, [0] * 5, *[[1, 1, 0, 0, 0]] * 3]


def test_only_the_masks_that_were_asked_for_are_drawn():
    assert [mask.name for mask in hermetic.show([2, 3], backends=["flex"]).masks] == ["boundaries", "flex"]
    assert [mask.name for mask in hermetic.show([2, 3], backends=[]).masks] == ["boundaries"]


@pytest.mark.parametrize(
    ("subject", "options", "error", "message"),
    [
        (3.5, {}, AuditError, "cannot show a float; expected lengths of documents"),
        ([0, 0], {}, AuditError, "holds no token, so there is nothing to draw"),
        ([], {}, AuditError, "holds no token"),
        ([2, -1], {}, BoundariesError, r"lengths\[1\] is -1"),
        ([2, 3], {"row": 1}, AuditError, "row is 1, and lengths are one row; expected 0 to 0"),
        ([2, 3], {"window": 0}, AuditError, "window is 0, expected a whole number of at least 1 token"),
        ([2, 3], {"chunk": 2.0}, AuditError, r"chunk is 2\.0, expected a whole number"),
        ([2, 3], {"window": 2, "causal": False}, AuditError, "it needs causal=True"),
        ([2, 3], {"backends": ["sdpa"]}, AuditError, f"expected some of {', '.join(BACKENDS)}"),
        ([2, 3], {"backends": "flex"}, AuditError, "backends is 'flex', expected some of"),
        ([2, 3], {"backends": ["edges"]}, AuditError, "cannot be drawn as edges, for it holds nothing that those"),
        ({"input_ids": [[5, 6]]}, {"row": 1}, AuditError, "row is 1, and model inputs has 1 row of 2 tokens"),
        ({"weights": [[5, 6]]}, {}, AuditError, "no tensor with a value for each token"),
        ("missing.npz", {}, AuditError, r"missing\.npz"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_way_out(subject, options, error, message):
    with pytest.raises(error, match=message):
        hermetic.show(subject, **options)


def test_a_picture_says_in_one_line_what_it_is():
    batch = hermetic.collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], pad_to=8)

    assert repr(hermetic.show([2, 3])) == "RowPicture(2 documents, 5 tokens)"
    assert repr(hermetic.show(batch)) == "RowPicture(2 documents, 5 tokens, 3 of padding)"


def test_the_tiles_of_a_row_that_has_too_many_are_not_counted_and_a_note_says_so(monkeypatch):
    monkeypatch.setattr(import_module("hermetic.show.show"), "MAX_TILED", 5)

    assert [mask.name for mask in hermetic.show([2, 3]).masks] == ["boundaries", "causal", "flex"]
    longer = hermetic.show([2, 4])
    assert [mask.name for mask in longer.masks] == ["boundaries", "causal"]
    assert longer.notes == ("FlexAttention is not drawn: its tiles are counted for rows of up to 5 slots",)
    with pytest.raises(AuditError, match="cannot be drawn as flex"):
        hermetic.show([2, 4], backends=["flex"])


def test_pictures_that_differ_have_patterns_of_other_names_and_the_same_have_the_same():
    def named(lengths, **options):
        return re.findall(r'<pattern id="([^"]+)"', hermetic.show(lengths, **options).to_svg())

    assert named([2, 3]) == named([2, 3])
    assert not set(named([2, 3])) & {*named([3, 2]), *named([2, 3], window=2)}

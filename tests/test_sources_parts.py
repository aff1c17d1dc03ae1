"""However a file is cut, its parts hold each record once, in order, with its number."""

import json
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from source_helpers import WRITERS, found, numbered, plainly, read_all, write_raw

from hermetic.data.sources import Part, SourceFile, read_part, split_into_parts
from hermetic.errors import SourceError

# Everything that a scanner may trip over: quotes, backslashes, brackets, commas, line ends, characters of four bytes.
TEXTS = st.text(st.sampled_from('ab"\\{}[],:\n\r\t \u2028é😀\x00')) | st.text(st.characters(codec="utf-8"), max_size=20)
RECORDS = st.lists(
    st.fixed_dictionaries({"text": TEXTS, "input_ids": st.lists(st.integers(-(2**40), 2**40), max_size=5)}),
    min_size=1,
    max_size=12,
)
AWKWARD = [
    {"text": text, "input_ids": [index]} for index, text in enumerate(['"', "\\", '\\"', "}],[{", "", "\n", "é😀"])
]


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "dataset"])
@given(records=RECORDS, part_bytes=st.integers(1, 300))
@example(records=AWKWARD, part_bytes=1)
@example(records=AWKWARD, part_bytes=10**6)
@settings(max_examples=25)
def test_all_parts_together_hold_exactly_the_records_of_the_file_whatever_their_size(
    tmp_path_factory, name, records, part_bytes
):
    folder = tmp_path_factory.mktemp("any")
    WRITERS[name](folder / name, records)

    read = read_all(folder / name, part_bytes=part_bytes, spool=folder / "spool")

    assert [record.values for record in read] == records
    assert numbered(read) == plainly(folder / name)


@pytest.mark.parametrize("part_bytes", [1, 100, 10**6])
def test_all_parts_of_a_folder_of_datasets_hold_exactly_its_rows(tmp_path, part_bytes):
    WRITERS["dataset"](tmp_path / "dataset", AWKWARD)

    read = read_all(tmp_path / "dataset", part_bytes=part_bytes, spool=tmp_path)

    assert numbered(read) == list(enumerate(AWKWARD, start=1)) == plainly(tmp_path / "dataset")
    assert len(list((tmp_path / "dataset").glob("*.arrow"))) == 2


@pytest.mark.parametrize("name", WRITERS)
def test_parts_and_files_survive_pickling_and_lie_end_to_end(tmp_path, name):
    WRITERS[name](tmp_path / name, AWKWARD)
    files = found(tmp_path / name, spool=tmp_path / "spool")
    parts = split_into_parts(files, part_bytes=1)

    assert pickle.loads(pickle.dumps((files, parts))) == (files, parts)  # noqa: S301 - our own bytes
    assert [part.index for part in parts] == list(range(len(parts)))
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert len(parts) > 1


def test_any_part_can_be_read_alone_and_again(tmp_path):
    for name, write in WRITERS.items():
        write(tmp_path / name, AWKWARD)
        (file,) = found(tmp_path / name, spool=tmp_path / "spool")
        parts = split_into_parts([file], part_bytes=40)
        backwards = [list(read_part(file, part)) for part in reversed(parts)]

        assert backwards[::-1] == [list(read_part(file, part)) for part in parts]


def test_the_worked_example_of_three_lines_in_two_parts(tmp_path):
    path = write_raw(tmp_path / "a.jsonl", b'{"a": 11}\n' * 3)
    files = found(path, spool=tmp_path)

    assert split_into_parts(files, part_bytes=15) == [
        Part(index=0, file=0, start=0, stop=20, first_number=1),
        Part(index=1, file=0, start=20, stop=30, first_number=3),
    ]


def test_a_part_of_an_array_begins_behind_a_comma_and_the_first_behind_the_bracket(tmp_path):
    path = write_raw(tmp_path / "a.json", b'[{"a": 1},{"b": 2}]')
    files = found(path, spool=tmp_path)

    assert split_into_parts(files, part_bytes=1) == [
        Part(index=0, file=0, start=1, stop=10, first_number=1),
        Part(index=1, file=0, start=10, stop=19, first_number=2),
    ]


def test_parts_are_numbered_over_all_files_and_point_to_theirs(tmp_path):
    paths = [write_raw(tmp_path / name, b'{"a": 1}\n' * 2) for name in ("b.jsonl", "a.jsonl")]
    parts = split_into_parts(found(*paths, spool=tmp_path), part_bytes=1)

    assert [(part.index, part.file, part.first_number) for part in parts] == [
        (0, 0, 1),
        (1, 0, 2),
        (2, 1, 1),
        (3, 1, 2),
    ]


def test_a_file_larger_than_the_blocks_it_is_read_in_is_cut_at_its_lines_and_elements(tmp_path):
    records = [{"text": "x" * (index % 7) * 9000, "n": index} for index in range(200)]
    lines, array = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    array.write_text(json.dumps(records))

    for path in (lines, array):
        assert path.stat().st_size > 4 << 20
        files = found(path, spool=tmp_path)
        parts = split_into_parts(files, part_bytes=1 << 20)
        read = [record for part in parts for record in read_part(files[0], part)]

        assert numbered(read) == list(enumerate(records, start=1))
        assert len(parts) == 5
        assert all(part.stop - part.start < (1 << 20) + 60_000 for part in parts)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_changed_since_it_was_fingerprinted_is_not_read(tmp_path, name):
    WRITERS[name](tmp_path / name, AWKWARD)
    (file,) = found(tmp_path / name, spool=tmp_path / "spool")
    (part, *_) = split_into_parts([file])
    stale = SourceFile(
        source=file.source,
        path=file.path,
        name=file.name,
        kind=file.kind,
        sha256=file.sha256,
        size=file.size,
        mtime_ns=file.mtime_ns - 1,
    )

    assert list(read_part(file, part))
    for use in (lambda: next(read_part(stale, part)), lambda: split_into_parts([stale])):
        with pytest.raises(SourceError, match="changed after it was fingerprinted") as caught:
            use()
        assert caught.value.reason == "changed_file"


@pytest.mark.parametrize(
    "content",
    [b'{"a": 1}\n{"a": 2}\n{"a": 3}\n{"a": 4}\n', b'{"a": 1}\n', b'{"a": 1}\n{"a" 2}\n{"a": 3}\n'],
    ids=["grown", "shrunk", "damaged"],
)
def test_a_file_that_changes_while_it_is_read_is_an_error_before_the_change_passes_for_a_bad_record(tmp_path, content):
    path = write_raw(tmp_path / "a.jsonl", b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    (file,) = found(path, spool=tmp_path)
    (part,) = split_into_parts([file])
    records = read_part(file, part)
    first = next(records)
    path.write_bytes(content)

    assert first.values == {"a": 1}
    with pytest.raises(SourceError, match="changed after it was fingerprinted") as caught:
        assert [record.number for record in records] == [2, 3]
    assert caught.value.reason == "changed_file"


def test_a_file_that_vanishes_before_it_is_read_is_an_error(tmp_path):
    path = write_raw(tmp_path / "a.jsonl", b'{"a": 1}\n')
    (file,) = found(path, spool=tmp_path)
    (part,) = split_into_parts([file])
    path.unlink()

    with pytest.raises(SourceError, match=r"a\.jsonl does not exist, expected a file; check the path"):
        next(read_part(file, part))

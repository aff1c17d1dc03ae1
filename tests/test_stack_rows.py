"""Rows to ranks and to batches: none is lost, none comes twice, and what has no boundaries is no row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stack_helpers import documents_of, rows_of

from hermetic.errors import FeedError
from hermetic.integrations.balanced import BalancedRowSampler, work_of_lengths
from hermetic.integrations.loading import RowsOrBlanks, row_loader
from hermetic.integrations.rows import PackedCollator, collate_rows, lengths_of_rows

shapes = st.fixed_dictionaries(
    {
        "rows_per_batch": st.integers(1, 3),
        "num_ranks": st.integers(1, 4),
        "accumulation_steps": st.integers(1, 3),
        "window": st.integers(1, 3),
        "seed": st.none() | st.integers(0, 5),
    }
)


def samplers(work, options):
    return [BalancedRowSampler(work, rank=rank, **options) for rank in range(options["num_ranks"])]


@given(work=st.lists(st.integers(1, 50), min_size=1, max_size=60), options=shapes, epoch=st.integers(0, 3))
def test_every_row_is_in_one_batch_of_one_rank_and_all_ranks_have_as_many_batches(work, options, epoch):
    batches = []
    for sampler in samplers(work, options):
        sampler.set_epoch(epoch)
        batches.append(list(sampler))
        assert len(batches[-1]) == len(sampler)

    assert len({len(mine) for mine in batches}) == 1
    given_rows = [row for mine in batches for batch in mine for row in batch if row is not None]
    assert sorted(given_rows) == list(range(len(work)))
    assert all(1 <= len(batch) <= options["rows_per_batch"] for mine in batches for batch in mine)


@given(work=st.lists(st.integers(1, 50), min_size=1, max_size=60), options=shapes)
def test_optimizer_steps_are_counted_from_rows(work, options):
    sampler = samplers(work, options)[0]
    per_step = options["rows_per_batch"] * options["num_ranks"] * options["accumulation_steps"]

    assert sampler.num_steps == -(-len(work) // per_step)
    assert -(-len(sampler) // options["accumulation_steps"]) == sampler.num_steps  # as trainers count them


def steps_of(work, options):
    """The set of rows of each step, over all ranks."""
    accumulation = options["accumulation_steps"]
    batches = [list(sampler) for sampler in samplers(work, options)]
    steps = range(0, len(batches[0]), accumulation)
    return [
        {row for mine in batches for batch in mine[step : step + accumulation] for row in batch} - {None}
        for step in steps
    ]


@given(work=st.lists(st.integers(1, 50), min_size=1, max_size=60), size=st.integers(1, 3), ranks=st.integers(1, 4))
def test_the_rows_of_a_step_are_the_same_for_any_number_of_ranks(work, size, ranks):
    options = {"accumulation_steps": 2, "seed": 1, "window": 1}
    several = steps_of(work, {**options, "rows_per_batch": size, "num_ranks": ranks})
    one = steps_of(work, {**options, "rows_per_batch": size * ranks, "num_ranks": 1})

    assert several == one


def quartets(batches):
    return [batches[start : start + 4] for start in range(0, len(batches), 4)]


def slowdown(work, balanced_by, options):
    """Time of an epoch in which ranks wait for each other in each step, over that of even work."""
    steps = [
        [sum(work[row] for batch in step for row in batch) for step in quartets(list(sampler))]
        for sampler in samplers(balanced_by, {**options, "accumulation_steps": 4, "num_ranks": 4})
    ]
    return sum(map(max, zip(*steps, strict=True))) / (sum(work) / 4)


def test_balanced_rows_wait_for_each_other_less_than_rows_that_look_alike():
    lengths = lengths_of_rows(rows_of(documents_of([1 + 37 * n % 113 for n in range(240)]), [1, 5] * 40))
    work = work_of_lengths(lengths, (1.0, 0.05)).tolist()
    options = {"rows_per_batch": 1, "seed": 3}
    alike = slowdown(work, [1.0] * len(work), {**options, "window": 1})
    balanced = [slowdown(work, work, {**options, "window": window}) for window in (5, 1)]

    assert 1.0 <= balanced[0] <= balanced[1] < alike


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_batch": 0}, "rows_per_batch is 0; expected a whole number of at least 1"),
        ({"rows_per_batch": "2", "num_ranks": 2}, "rows_per_batch is '2', a str"),
        ({"rows_per_batch": None, "num_ranks": 2}, "rows_per_batch is None"),
        ({"window": 0}, "window is 0"),
        ({"rank": 2, "num_ranks": 2}, "rank is 2 of 2 ranks, expected 0 to 1"),
        ({"rank": True, "num_ranks": 2}, "rank is True, a boolean"),
        ({"rank": 0.5, "num_ranks": 2}, "rank is 0.5, a float"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_is_no_number_of_rows_or_ranks_is_refused(options, message):
    options = {"rows_per_batch": 1, **options}
    with pytest.raises(FeedError, match=message):
        BalancedRowSampler(5, **options)
    with pytest.raises(FeedError, match=message):
        row_loader(rows_of(documents_of([3, 4]), [1, 1]), **options)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (2.5, "the number of rows is 2.5"),
        (0, "the number of rows is 0"),
        ("five", "row_work is 'five'"),
        ([[1, 2], [3, 4]], r"row_work has shape \[2, 2\]"),
        ([], "there are 0 rows"),
    ],
)
def test_what_is_no_work_of_rows_is_refused(work, message):
    with pytest.raises(FeedError, match=message):
        BalancedRowSampler(work, rows_per_batch=1)


def test_whole_numbers_of_numpy_are_numbers_and_an_epoch_is_one():
    sampler = BalancedRowSampler(np.int64(4), rows_per_batch=np.int64(2), seed=None)

    assert list(sampler) == [[0, 1], [2, 3]]
    with pytest.raises(FeedError, match="epoch is -1"):
        sampler.set_epoch(-1)


def test_a_rank_without_a_row_gets_one_that_trains_nothing():
    rows = rows_of(documents_of([3, 4, 5]), [1, 1, 1])
    loaders = [row_loader(rows, rows_per_batch=2, rank=rank, num_ranks=2, seed=None) for rank in (0, 1)]
    batches = [list(loader) for loader in loaders]

    assert [len(mine) for mine in batches] == [1, 1]
    supervised = [int((inputs["labels"] != -100).sum()) for mine in batches for inputs in mine]
    assert sum(supervised) == int((PackedCollator()(rows)["labels"] != -100).sum())
    five = row_loader(rows[:1], rows_per_batch=2, rank=1, num_ranks=2, seed=None)
    assert [inputs["labels"].tolist() for inputs in five] == [[[-100, -100]]]


@pytest.mark.parametrize("form", ["rows", "packed", "documents"])
def test_a_blank_row_has_the_form_of_the_others(form):
    document = documents_of([3])[0]
    item = {"rows": [document], "packed": {**document, "seq_lengths": [3]}, "documents": document}[form]
    collator = PackedCollator(items="documents" if form == "documents" else "rows")

    assert collator(RowsOrBlanks([item]).__getitems__([None]))["labels"].tolist() == [[-100, -100]]


def test_lists_packed_rows_and_single_documents_make_the_same_batch():
    documents = documents_of([4, 2, 5])
    packed = {
        name: [token for document in documents for token in document[name]] for name in ("input_ids", "labels")
    } | {"seq_lengths": [4, 2, 5]}
    expected = PackedCollator()([documents])

    for inputs in (PackedCollator()([packed]), PackedCollator(items="documents")(documents)):
        assert inputs.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(torch.as_tensor(inputs[name]), torch.as_tensor(value)), name


def test_a_packer_that_labels_first_tokens_or_gives_no_labels_is_set_right():
    row = {"input_ids": [5, 6, 7, 8], "seq_lengths": [3, 1]}

    for other in (row, {**row, "labels": [5, 6, 7, 8]}):
        assert collate_rows([other]).labels.tolist() == [-100, 6, 7, -100]


def test_columns_of_tensors_are_columns():
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "seq_lengths": [3, 1]}
    tensors = {name: torch.tensor(values) for name, values in row.items()}

    assert torch.equal(collate_rows([tensors]).labels, collate_rows([row]).labels)
    assert tensors["labels"].tolist() == [5, 6, 7, 8]  # what was given is as it was


@pytest.mark.parametrize("mask", ["loss_mask", "completion_mask", "assistant_masks"])
def test_a_mask_that_nobody_has_made_labels_of_is_not_forgotten(mask):
    row = {"input_ids": [5, 6, 7], "seq_lengths": [3], mask: [0, 0, 1]}
    with pytest.raises(FeedError, match=f"row 0 has '{mask}' and no 'labels', so all of its tokens would be trained"):
        PackedCollator()([row])
    assert PackedCollator()([{**row, "labels": [-100, -100, 7]}])["labels"].tolist() == [[-100, -100, 7]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"seq_lengths": [2.0, 1.0]}, "row 0's seq_lengths has dtype float64"),
        ({"seq_lengths": 3}, "row 0's seq_lengths is of type int"),
        ({"labels": 1}, r"row 0's labels have shape \[\]"),
        ({"labels": None}, r"row 0's labels have shape \[\]"),
        ({"input_ids": [5.0, 6.5, 7.0]}, "row 0's input_ids have dtype float64, expected whole numbers"),
        ({"labels": [-100.0, 6.5, 7.0]}, "row 0's labels have dtype float64, expected whole numbers"),
    ],
)
def test_columns_that_are_no_columns_of_whole_numbers_are_refused(columns, message):
    with pytest.raises(FeedError, match=message):
        PackedCollator()([{"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "seq_lengths": [2, 1], **columns}])


def test_a_row_that_lost_its_lengths_is_not_taken_for_one_document():
    with pytest.raises(FeedError, match=r"row 0 has no 'seq_lengths'.*remove_unused_columns=False"):
        PackedCollator()([{"input_ids": [1, 2], "labels": [-100, 2]}])
    with pytest.raises(FeedError, match="items is 'batches'"):
        PackedCollator(items="batches")

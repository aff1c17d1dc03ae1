"""What plan_rows takes, and the message of everything that it refuses."""

import array

import numpy as np
import pyarrow as pa
import pytest
import torch

from hermetic.errors import PlanError
from hermetic.plan import plan_rows

EXPECTED = [[0], [2, 1]]


@pytest.mark.parametrize(
    "lengths",
    [
        [4, 1, 3],
        (4, 1, 3),
        [np.int64(4), np.uint8(1), 3],
        array.array("i", [4, 1, 3]),
        np.array([4, 1, 3], np.int64),
        np.array([4, 1, 3], np.int32),
        np.array([4, 1, 3], np.uint16),
        np.array([4, 1, 3], np.uint64),
        np.array([4, 1, 3], object),
        np.array([4, 0, 1, 0, 3], np.int32)[::2],
        pa.array([4, 1, 3], pa.int32()),
        pa.chunked_array([[4], [1, 3]]),
        torch.tensor([4, 1, 3]),
        torch.tensor([4, 1, 3], dtype=torch.int32),
    ],
    ids=lambda lengths: type(lengths).__name__,
)
def test_every_kind_of_integer_array_gives_the_same_plan(lengths):
    plan = plan_rows(lengths, 4)
    assert [row.tolist() for row in plan.rows()] == EXPECTED
    assert plan.lengths.dtype == np.int32
    assert plan.lengths.tolist() == [4, 1, 3]


class OnlyDlpack:
    """What a foreign tensor library offers."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyArrow:
    """What a foreign column of a table offers."""

    def __arrow_array__(self, type=None):  # noqa: A002 - the name is Arrow's
        return pa.array([4, 1, 3], type)


@pytest.mark.parametrize("lengths", [OnlyDlpack(np.array([4, 1, 3])), OnlyArrow()])
def test_an_array_that_only_speaks_an_exchange_protocol_is_read(lengths):
    assert [row.tolist() for row in plan_rows(lengths, 4).rows()] == EXPECTED


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_read_only_array_of_the_width_that_a_plan_keeps_is_not_copied(dtype):
    lengths = np.array([4, 1, 2**31 if dtype is np.int64 else 3], dtype)
    lengths.setflags(write=False)
    assert plan_rows(lengths, 4, on_overflow="truncate").lengths is lengths


def test_a_foreign_array_that_cannot_be_exchanged_is_refused():
    class Elsewhere(OnlyDlpack):
        def __dlpack__(self, **_):
            raise BufferError("the data is on another device")

    with pytest.raises(PlanError, match=r"of type Elsewhere do not turn into a NumPy array .*another device"):
        plan_rows(Elsewhere(np.array([1])), 4)


def test_more_documents_than_a_plan_can_index_are_refused():
    with pytest.raises(PlanError, match=r"there are 2147483648 documents; expected at most 2147483647"):
        plan_rows(np.broadcast_to(np.int8(1), 2**31), 4)


def test_lengths_that_32_bits_do_not_hold_are_kept_in_64():
    plan = plan_rows([2**40, 3], 4, on_overflow="truncate")
    assert plan.lengths.tolist() == [2**40, 3]
    assert (plan.lengths.dtype, plan.order.dtype) == (np.int64, np.int32)


def test_a_document_of_two_billion_tokens_costs_no_table_of_its_size():
    plan = plan_rows([2**31 - 1, 2**31 - 2, 1], 2**31 - 1)
    assert [row.tolist() for row in plan.rows()] == [[0], [1, 2]]
    assert plan.lower_bound == 2


def test_a_range_is_a_sequence_of_lengths():
    assert plan_rows(range(3), 4).lengths.tolist() == [0, 1, 2]


def test_a_plan_does_not_change_when_the_given_array_does():
    lengths = np.array([4, 1, 3])
    plan = plan_rows(lengths, 4)
    lengths[:] = 99
    assert plan.lengths.tolist() == [4, 1, 3]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, True, 2], r"document 1 has length True, a bool"),
        ([4, 2.0, 2], r"document 1 has length 2\.0, a float"),
        ([4, None], r"document 1 has length None, a NoneType"),
        ([[1, 2], [3, 4]], r"document 0 has length \[1, 2\], a list; .* one-dimensional"),
        (["7"], r"document 0 has length '7', a str"),
        (np.array([4.0, 2.0]), r"document 0 has length .*4\.0.* \(float64\); .* integers"),
        (np.array([False, True]), r"document 0 has length .*False.* \(bool\); .* integers"),
        (np.array([1, 2.5], object), r"document 1 has length 2\.5, a float"),
        (pa.array([4, None]), r"\(float64\); .* without nulls"),
        (torch.tensor([1.5]), r"document 0 has length .*1\.5.* \(float32\)"),
        (np.ones((2, 3), np.int64), r"2 dimensions \(shape \(2, 3\), from ndarray\)"),
        (5, r"0 dimensions \(shape \(\), from int\)"),
        ((length for length in [1, 2]), r"0 dimensions .* from generator"),
        ([3, -2, -1], r"document 1 has length -2; a length is 0 or more tokens"),
        (np.array([3, -2], np.int32), r"document 1 has length -2"),
        ([1, 2**70], r"document 1 has length 1180591620717411303424; expected at most 9223372036854775807"),
        (np.array([1, 2**63], np.uint64), r"document 1 has length 9223372036854775808; expected at most"),
        ([2**62, 2**62], r"the lengths sum to 9223372036854775808 tokens; expected at most"),
        (torch.empty(2, dtype=torch.int64, device="meta"), r"of type Tensor do not turn into a NumPy array"),
    ],
)
def test_lengths_that_are_not_one_integer_per_document_are_refused_by_name(lengths, message):
    with pytest.raises(PlanError, match=message):
        plan_rows(lengths, 10, on_overflow="truncate")


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (0, r"capacity is 0; expected a whole number of at least 1"),
        (-4, r"capacity is -4; expected a whole number of at least 1"),
        (True, r"capacity is True, a boolean; expected a whole number"),
        (np.True_, r"capacity is True, a boolean"),
        (4.0, r"capacity is 4\.0, a float; expected a whole number"),
        ("4", r"capacity is '4', a str"),
        (None, r"capacity is None, a NoneType"),
        (2**31, r"capacity is 2147483648; expected at most 2147483647"),
    ],
)
def test_a_capacity_that_is_not_a_positive_whole_number_is_refused(capacity, message):
    with pytest.raises(PlanError, match=message):
        plan_rows([1], capacity)


def test_a_numpy_integer_is_a_capacity():
    assert type(plan_rows([1], np.int32(4)).capacity) is int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"strategy": "first_fit"},
            r"strategy is 'first_fit'; expected one of: best_fit_decreasing, optimal, next_fit, concat_then_split",
        ),
        ({"strategy": None}, r"strategy is None; expected one of"),
        ({"on_overflow": "wrap"}, r"on_overflow is 'wrap'; expected one of: error, truncate, split, drop"),
        ({"max_documents_per_row": 0}, r"max_documents_per_row is 0; expected a whole number of at least 1"),
        ({"max_documents_per_row": 1.5}, r"max_documents_per_row is 1\.5, a float"),
        ({"seed": -1}, r"seed is -1; expected a whole number of at least 0"),
        ({"seed": False}, r"seed is False, a boolean"),
        ({"epoch": 1}, r"epoch is 1, but seed is None: without a seed all epochs are the same"),
        ({"epoch": -1, "seed": 0}, r"epoch is -1; expected a whole number of at least 0"),
        ({"align": 0}, r"align is 0; expected a whole number of at least 1"),
        ({"align": 3}, r"align is 3 and does not divide the capacity 4; .* nearest capacities are 3 and 6"),
        ({"align": 16}, r"align is 16 and does not divide the capacity 4; .* nearest capacities are 16 and 16"),
        ({"time_limit": 9}, r"time_limit is 9, but strategy 'best_fit_decreasing' takes no time worth limiting"),
        ({"strategy": "optimal", "time_limit": 0}, r"time_limit is 0; expected seconds above 0"),
        ({"strategy": "optimal", "time_limit": float("nan")}, r"time_limit is nan; expected seconds above 0"),
        ({"strategy": "optimal", "time_limit": float("inf")}, r"time_limit is inf; expected seconds above 0"),
        ({"strategy": "optimal", "time_limit": "60"}, r"time_limit is '60', a str; expected a number of seconds"),
        ({"strategy": "optimal", "time_limit": True}, r"time_limit is True, a bool; expected a number of seconds"),
        (
            {"strategy": "optimal", "max_documents_per_row": 2},
            r"max_documents_per_row is 2, and strategy 'optimal' cannot keep to it: .*best_fit_decreasing",
        ),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(options, message):
    with pytest.raises(PlanError, match=message):
        plan_rows([1], 4, **options)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (2, r"row 2 does not exist; the plan has 2 rows"),
        (-1, r"row is -1; expected a whole number of at least 0"),
        (0.0, r"row is 0\.0, a float"),
    ],
)
def test_a_row_that_does_not_exist_is_refused(index, message):
    with pytest.raises(PlanError, match=message):
        plan_rows([4, 1, 3], 4).row(index)


def test_the_text_of_a_plan_is_one_line_of_what_matters():
    assert repr(plan_rows([5, 2, 3, 1], 4, on_overflow="truncate")) == (
        "<Plan best_fit_decreasing: 4 documents in 3 rows of 4 tokens, utilization 0.8333, 1 tokens lost>"
    )

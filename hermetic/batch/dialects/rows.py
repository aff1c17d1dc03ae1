"""Segment ids of rows, [B, capacity]: a number for the document of each slot, made and read.

Algorithm: the document ids of each row, with the padded end of the row as a number of its own below the
first. Guarantee: read back, a document's tokens stand together and the padding is at the end. A gap in the
numbers is an empty document, so that empty ones survive a round trip unless they come last in their row,
where no later number shows the gap. Price: O(slots).

Numbers are no mask: a model that casts them to booleans sees one document. Read them with
``rows_from_segment_ids`` and hand on what the model understands.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from hermetic.batch import views
from hermetic.batch.boundaries import MAX_DOCUMENT_ID, Boundaries
from hermetic.batch.dialects.common import check_rows
from hermetic.batch.integers import IntArray, Integers, int64_array
from hermetic.errors import BatchError


def segment_ids(rows: Sequence[Boundaries], *, capacity: int, first_id: Literal[0, 1]) -> torch.Tensor:
    """Number the documents of each row.

    Args:
        rows: The documents of each of B rows.
        capacity: Slots of each row.
        first_id: 0 numbers from 0 with -1 on the padding, 1 numbers from 1 with 0 on the padding.

    Returns:
        [B, capacity] int32, each row numbered anew.

    Raises:
        BatchError: If a row has more tokens than ``capacity``.

    Example:
        >>> rows = [Boundaries.from_lengths([2, 1]), Boundaries.from_lengths([4])]
        >>> segment_ids(rows, capacity=4, first_id=1)
        tensor([[1, 1, 2, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    _check_first_id(first_id)
    return document_ids_of_rows(rows, capacity) + first_id


def rows_from_segment_ids(ids: Integers, *, first_id: Literal[0, 1]) -> list[Boundaries]:
    """Read the documents of each row from their numbers.

    Args:
        ids: [B, capacity] whole numbers; booleans are refused, for the numbers are lost in them.
        first_id: 0 if documents are numbered from 0 with -1 on the padding, 1 if from 1 with 0 on it.

    Returns:
        B boundaries. A gap in a row's numbers is an empty document.

    Raises:
        BatchError: If a number falls or comes back after another document began, a document follows the
            padding, a number is out of range, or the values are not whole numbers of two dimensions.

    Example:
        >>> rows_from_segment_ids([[1, 1, 1, 2, 2, 2, 2, 2]], first_id=1)
        [Boundaries(document_lengths=(3, 5))]
    """
    _check_first_id(first_id)
    numbers = int64_array(ids, name="segment_ids", ndims=(2,), error=BatchError)
    return rows_from_numbers(numbers, name="segment_ids", first=first_id, padding=True)


def document_ids_of_rows(rows: Sequence[Boundaries], capacity: int) -> torch.Tensor:
    """The document ids of rows of equal capacity.

    Args:
        rows: The documents of each of B rows.
        capacity: Slots of each row.

    Returns:
        [B, capacity] int32, each row 0-based, -1 on its padding.

    Raises:
        BatchError: If a row has more tokens than ``capacity``, or one ``Boundaries`` stands for the rows.

    Example:
        >>> document_ids_of_rows([Boundaries.from_lengths([2, 1])], 4)
        tensor([[ 0,  0,  1, -1]], dtype=torch.int32)
    """
    check_rows(rows)
    for index, row in enumerate(rows):
        if row.num_tokens > capacity:
            raise BatchError(
                f"row {index} has {row.num_tokens} tokens, expected at most the capacity of {capacity}; plan the "
                f"rows for this capacity"
            )
    if not rows:
        return torch.empty((0, max(0, capacity)), dtype=torch.int32)
    return torch.stack([views.document_ids_from_lengths(row.document_lengths, num_slots=capacity) for row in rows])


def rows_from_numbers(numbers: IntArray, *, name: str, first: int, padding: bool) -> list[Boundaries]:
    """Read the documents of each row from numbers that never fall.

    Args:
        numbers: [B, capacity] int64.
        name: The argument they came as, for the message.
        first: The number of a row's first document.
        padding: Whether the end of a row may carry ``first - 1``, the number of no document.

    Returns:
        B boundaries. A gap in a row's numbers is an empty document.

    Raises:
        BatchError: As in ``rows_from_segment_ids``.

    Example:
        >>> rows_from_numbers(np.array([[0, 0, 2, -1]]), name="ids", first=0, padding=True)
        [Boundaries(document_lengths=(2, 0, 1))]
    """
    lowest, highest = first - int(padding), first + MAX_DOCUMENT_ID
    _refuse(
        numbers,
        (numbers < lowest) | (numbers > highest),
        name,
        lambda _: f"expected {lowest} to {highest}; number the documents of each row from {first}",
    )
    real = numbers >= first
    both = np.zeros_like(real)
    both[:, 1:] = real[:, 1:] & real[:, :-1]
    _refuse(
        numbers,
        real & ~both & (np.arange(numbers.shape[1]) > 0),
        name,
        lambda _: f"after the padding began, expected {lowest} up to the row's end; move the padding there",
    )
    falling = np.zeros_like(real)
    falling[:, 1:] = both[:, 1:] & (numbers[:, 1:] < numbers[:, :-1])
    _refuse(
        numbers,
        falling,
        name,
        lambda before: (
            f"after document {before} began, expected {before} or more; a document's tokens stand together, so sort "
            f"them or renumber the documents in order"
        ),
    )
    counted = (np.bincount(row[row >= first] - first) for row in numbers)
    return [Boundaries(document_lengths=tuple(lengths.tolist())) for lengths in counted]


def _refuse(numbers: IntArray, wrong: npt.NDArray[np.bool_], name: str, why: Callable[[int], str]) -> None:
    """Name the first wrong cell; ``why`` is told the number before it in its row."""
    if wrong.any():
        row, slot = np.argwhere(wrong)[0].tolist()
        raise BatchError(f"{name}[{row}, {slot}] is {int(numbers[row, slot])}, {why(int(numbers[row, slot - 1]))}")


def _check_first_id(first_id: int) -> None:
    if first_id not in (0, 1):
        raise BatchError(
            f"first_id is {first_id}, expected 0 (padding is -1) or 1 (padding is 0); pass the number of the first "
            f"document of a row"
        )

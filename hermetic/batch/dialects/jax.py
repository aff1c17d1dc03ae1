"""Segment ids and positions as JAX models take them: NumPy, numbered from 1, made and read.

Algorithm: ``segment_ids`` from 1 with 0 on the padding, and each slot's position in its document. JAX is not
imported. Guarantee: read back, ids and positions tell the same documents. As with all numbered ids, an empty
document is a gap and is lost at the end of a row. The padding has the position 0 throughout. Price: O(slots).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.rows import rows_from_segment_ids, segment_ids
from hermetic.batch.integers import IntArray, Integers, int64_array
from hermetic.errors import BatchError


def jax_segments(rows: Sequence[Boundaries], *, capacity: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Segment ids and positions of rows.

    Args:
        rows: The documents of each of B rows.
        capacity: Slots of each row.

    Returns:
        ``segment_ids`` and ``positions``, both [B, capacity] int32; both are 0 on the padding.

    Raises:
        BatchError: If a row has more tokens than ``capacity``.

    Example:
        >>> jax_segments([Boundaries.from_lengths([2, 1])], capacity=4)
        (array([[1, 1, 2, 0]], dtype=int32), array([[0, 1, 0, 0]], dtype=int32))
    """
    ids: npt.NDArray[np.int32] = segment_ids(rows, capacity=capacity, first_id=1).numpy()
    return ids, _positions(rows, ids.shape).astype(np.int32)


def rows_from_jax_segments(ids: Integers, positions: Integers) -> list[Boundaries]:
    """Read the documents of each row from segment ids, and check the positions against them.

    Args:
        ids: [B, capacity] from 1, 0 on the padding; ``numpy.asarray`` of a JAX array.
        positions: [B, capacity], from 0 in each document; the padding's are not looked at.

    Returns:
        B boundaries. A gap in a row's ids is an empty document.

    Raises:
        BatchError: As in ``rows_from_segment_ids``, or if the positions have another shape or tell other
            documents.

    Example:
        >>> rows_from_jax_segments([[1, 1, 2, 0]], [[0, 1, 0, 0]])
        [Boundaries(document_lengths=(2, 1))]
    """
    rows = rows_from_segment_ids(ids, first_id=1)
    numbers = int64_array(ids, name="segment_ids", ndims=(2,), error=BatchError)
    given = int64_array(positions, name="positions", ndims=(2,), error=BatchError)
    if given.shape != numbers.shape:
        raise BatchError(
            f"positions have shape {list(given.shape)}, expected {list(numbers.shape)}, that of segment_ids; pass the "
            f"two arrays of one batch"
        )
    expected = _positions(rows, numbers.shape)
    wrong = (given != expected) & (numbers > 0)
    if wrong.any():
        row, slot = np.argwhere(wrong)[0].tolist()
        raise BatchError(
            f"positions[{row}, {slot}] is {int(given[row, slot])}, expected {int(expected[row, slot])}, counted from "
            f"the start of document {int(numbers[row, slot])}; positions start anew with each document"
        )
    return rows


def _positions(rows: Sequence[Boundaries], shape: tuple[int, ...]) -> IntArray:
    positions = torch.zeros(shape, dtype=torch.int64)
    for line, row in zip(positions, rows, strict=True):
        line[: row.num_tokens] = row.position_ids
    array: IntArray = positions.numpy()
    return array

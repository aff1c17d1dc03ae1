"""One column of one document to an array, at the speed of memory.

Algorithm: NumPy reads a list at once; a boolean among numbers can only have become a 0 or a 1, so that the types of
those values alone are looked at. Arrays and tensors are taken as they are, in their own width.
Guarantee: what ``int64_array`` refuses is refused with its message, and what comes out has the values that went in. It
may share memory with the input: read only. Price: 20 ns for each value of a list, next to nothing for the others.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hermetic.batch.integers import int64_array
from hermetic.errors import DocumentError

Column: TypeAlias = npt.NDArray[np.integer[Any]]

_BOOLEANS: Final = frozenset({bool, np.bool_})


def read_column(values: Any, name: str, index: int) -> Column:
    """Whole numbers of one dimension.

    Args:
        values: a list, a NumPy array or a tensor.
        name: the column's, for the message.
        index: the document's, for the message.

    Returns:
        ``[T]`` of any integer type whose values fit int64.

    Raises:
        DocumentError: For floats, booleans or other dimensions.

    Example:
        >>> read_column([3, 5], "input_ids", 0)
        array([3, 5])
    """
    column = _column_at_once(values)
    if column is not None:
        return column
    return int64_array(values, name=f"document {index}'s {name}", ndims=(1,), error=DocumentError)


def _column_at_once(values: Any) -> Column | None:
    """The column, or None where it has to be read with care: it is empty, odd or wrong."""
    if isinstance(values, list | tuple):
        return _from_list(values)
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu" or values.dtype.is_floating_point or values.dtype.is_complex:
            return None
        values = values.numpy()
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu" and values.dtype != np.uint64:
        return values
    return None


def _from_list(values: list[Any] | tuple[Any, ...]) -> Column | None:
    try:
        column = np.asarray(values)
    except ValueError:  # ragged
        return None
    if column.ndim != 1 or column.dtype != np.int64:
        return None
    bits = np.flatnonzero(column.view(np.uint64) <= 1).tolist()
    return column if _BOOLEANS.isdisjoint(map(type, map(values.__getitem__, bits))) else None

"""Whole numbers in, from wherever they come: lists, NumPy arrays, torch tensors on any device.

Guarantee: what comes out is an int64 array with the values that went in; floats and booleans are refused
instead of cast. It may share memory with the input, so callers never write into it. Price: one pass over the
values.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hermetic.errors import HermeticError

Integers: TypeAlias = Sequence[Any] | npt.NDArray[Any] | torch.Tensor
"""One or more dimensions of whole numbers."""

IntArray: TypeAlias = npt.NDArray[np.int64]

_BOOLEANS = (bool, np.bool_)


def int64_array(values: Integers, *, name: str, ndims: tuple[int, ...], error: type[HermeticError]) -> IntArray:
    """Read whole numbers without changing any of them.

    Args:
        values: A (nested) list, a NumPy array or a tensor on any device.
        name: What the values are, for the message.
        ndims: The numbers of dimensions that are allowed.
        error: The class to raise.

    Returns:
        int64, the shape of the input. It may share the input's memory: read only.

    Raises:
        HermeticError: Of class ``error``, for floats, booleans, ragged nesting or other dimensions.

    Example:
        >>> int64_array([3, 5], name="lengths", ndims=(1,), error=HermeticError)
        array([3, 5])
    """
    array = _array(values, name, error)
    if array.ndim not in ndims:
        raise error(
            f"{name} has {array.ndim} dimensions (shape {list(array.shape)}), expected "
            f"{' or '.join(map(str, ndims))}; reshape it so that one value stands for one thing"
        )
    if array.dtype.kind not in "iu":
        raise error(
            f"{name} has dtype {array.dtype}, expected whole numbers that fit 64 bits; "
            f"convert it to int64 where its meaning is known"
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise error(f"{name} holds {int(array.max())}, which does not fit int64; check where it was computed")
    return array.astype(np.int64, copy=False)


def _array(values: Integers, name: str, error: type[HermeticError]) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        # NumPy has no bfloat16; the dtype is named here, for there is no array to name it later.
        if values.dtype.is_floating_point or values.dtype.is_complex:
            raise error(f"{name} has dtype {values.dtype}, expected whole numbers; convert it to torch.int64")
        detached: npt.NDArray[Any] = values.detach().cpu().numpy()
        return detached
    if isinstance(values, np.ndarray):
        return values
    _refuse_booleans(values, name, error)
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise error(f"{name} is ragged ({problem}); give every nested list the same length") from problem
    # An empty list carries no dtype; NumPy would call it float64.
    return array.astype(np.int64) if array.size == 0 else array


def _refuse_booleans(values: Any, name: str, error: type[HermeticError]) -> None:
    """NumPy turns ``[True, 2]`` into ``[1, 2]``; a mask passed as numbers must not get through that way."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise error(
            f"{name} is of type {type(values).__name__}, expected a list, a NumPy array or a torch tensor "
            f"of whole numbers"
        )
    kinds = set(map(type, values))
    if kinds.intersection(_BOOLEANS):
        index = next(i for i, value in enumerate(values) if isinstance(value, _BOOLEANS))
        raise error(f"{name}[{index}] is {values[index]}, expected a whole number; booleans are not numbers here")
    if kinds.intersection((list, tuple)):
        for index, value in enumerate(values):
            if isinstance(value, (list, tuple)):
                _refuse_booleans(value, f"{name}[{index}]", error)

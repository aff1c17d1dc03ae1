"""The arrays of a plan: 64-bit integers, one axis, owned by the plan and read-only.

A plan promises that what was checked stays true. Therefore an array that somebody else could still write to
is copied once; an array that is already owned and read-only is taken as it is.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from hermetic.errors import PlanError

IntArray: TypeAlias = npt.NDArray[np.int64]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile ``function`` with Numba on its first call, keep the machine code on disk, keep its types.

    Numba renews that file when the function's own source file changes, not when a file that it calls into
    does. So kernels that call each other live in one file.
    """
    kernel: Callable[_P, _R] = njit(cache=True)(function)
    return kernel


def frozen(array: IntArray) -> IntArray:
    """Make ``array``, which its caller gives away, read-only and return it."""
    array.setflags(write=False)
    return array


def owned(array: Any, name: str) -> IntArray:
    """Return ``array`` as a read-only int64 array that no one else can write to.

    Raises:
        PlanError: it is not a one-dimensional array of integers.
    """
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"shape {array.shape}, {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise PlanError(f"{name} must be a one-dimensional NumPy array of integers, but it is {found}")
    if array.dtype == np.int64 and array.flags.owndata and not array.flags.writeable:
        return array
    return frozen(array.astype(np.int64))


@compiled
def group_by(keys: IntArray, num_keys: int) -> tuple[IntArray, IntArray]:
    """Sort positions by their key, keeping the order of equal keys (a counting sort, O(N + num_keys)).

    Args:
        keys: ``[N]``, each in ``0..num_keys - 1``.
        num_keys: how many keys there are.

    Returns:
        ``members [N]``, the positions in the order of their keys, and ``starts [num_keys + 1]``: the
        positions with key ``k`` are ``members[starts[k]:starts[k + 1]]``.

    Example:
        >>> group_by(np.array([2, 0, 2, 1]), 3)
        (array([1, 3, 0, 2]), array([0, 1, 2, 4]))
    """
    starts = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    following = starts[:-1].copy()
    members = np.empty(len(keys), np.int64)
    for position in range(len(keys)):
        key = keys[position]
        members[following[key]] = position
        following[key] += 1
    return members, starts

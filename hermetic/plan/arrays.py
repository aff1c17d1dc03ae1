"""The arrays of a plan: integers in as few bytes as hold them, one axis, owned by the plan and read-only.

A plan promises that what was checked stays true. Therefore an array that somebody else could still write to
is copied once, into 32-bit integers if the values fit; an array that is already all of this is taken as it is.
"""

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from hermetic.constants import INT32_MAX
from hermetic.errors import PlanError

IntArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""int32 or int64: who computes with values that could leave int32 says so where it does."""

INT64_MAX: Final = 2**63 - 1

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
    """Return ``array`` as a read-only array that no one else can write to, in 32 bits if its values fit.

    Raises:
        PlanError: it is not a one-dimensional array of integers, or a value is no int64.
    """
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"shape {array.shape}, {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise PlanError(f"{name} must be a one-dimensional NumPy array of integers, but it is {found}")
    lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if highest > INT64_MAX:
        raise PlanError(f"{name} holds {highest}; expected at most {INT64_MAX}")
    fitting = np.int32 if lowest >= -INT32_MAX and highest <= INT32_MAX else np.int64
    if array.dtype == fitting and array.flags.c_contiguous and array.flags.owndata and not array.flags.writeable:
        return array
    return frozen(array.astype(fitting, order="C"))

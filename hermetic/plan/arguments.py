"""What callers hand in, turned into plain integers and one int64 array, or refused by name.

Nothing is rounded, wrapped or guessed: booleans and floats are refused even where Python would take them for
numbers, for a length that was a float was computed wrongly somewhere.
"""

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hermetic.constants import INT32_MAX
from hermetic.errors import PlanError
from hermetic.plan.arrays import IntArray, frozen

STRATEGIES: Final = ("best_fit_decreasing", "next_fit", "concat_then_split")
OVERFLOW_POLICIES: Final = ("error", "truncate", "split", "drop")

_INT64_MAX: Final = 2**63 - 1


def choice(value: object, name: str, valid: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``valid``; the error lists them all."""
    if not isinstance(value, str) or value not in valid:
        raise PlanError(f"{name} is {value!r}; expected one of: {', '.join(valid)}")
    return value


def whole_number(value: Any, name: str, *, minimum: int) -> int:
    """Return ``value`` as a Python int of at least ``minimum``; booleans and floats are no whole numbers."""
    expected = f"expected a whole number of at least {minimum}"
    if isinstance(value, bool | np.bool_):
        raise PlanError(f"{name} is {value}, a boolean; {expected}")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise PlanError(f"{name} is {value!r}, a {type(value).__name__}; {expected}") from error
    if number < minimum:
        raise PlanError(f"{name} is {number}; {expected}")
    return number


def read_capacity(value: Any) -> int:
    """Return the tokens per row as an int in ``1..2**31 - 1``."""
    capacity = whole_number(value, "capacity", minimum=1)
    if capacity > INT32_MAX:
        raise PlanError(
            f"capacity is {capacity}; expected at most {INT32_MAX}, for kernels index the tokens of a row "
            "with 32-bit integers. Choose the number of tokens that a model sees at once"
        )
    return capacity


def read_limit(value: Any) -> int | None:
    """Return ``max_documents_per_row`` as an int of at least 1, or None for no limit."""
    return None if value is None else whole_number(value, "max_documents_per_row", minimum=1)


def read_seed(value: Any) -> int | None:
    """Return ``seed`` as an int of at least 0, or None for the natural order."""
    return None if value is None else whole_number(value, "seed", minimum=0)


def read_lengths(lengths: npt.ArrayLike) -> IntArray:
    """Return document lengths as a read-only int64 array of its own, ``[num_documents]``.

    Args:
        lengths: a sequence of ints, or anything that turns itself into a NumPy array (NumPy, Arrow, torch).

    Raises:
        PlanError: not one-dimensional, not integers, a negative length, or more than 2**63 - 1 tokens in all.
            The message names the first offending document.
    """
    array = _from_elements(lengths) if isinstance(lengths, list | tuple) else _from_array(lengths)
    check_lengths(array)
    return frozen(array)


def check_lengths(array: IntArray) -> None:
    """Raise ``PlanError`` if a length is negative or their sum is no int64."""
    if array.size and int(array.min()) < 0:
        document = int(np.argmax(array < 0))
        raise PlanError(f"document {document} has length {array[document]}; a length is 0 or more tokens")
    total = exact_sum(array)
    if total > _INT64_MAX:
        raise PlanError(f"the lengths sum to {total} tokens; expected at most {_INT64_MAX}. Plan in several parts")


def exact_sum(array: IntArray) -> int:
    """Return the sum of non-negative integers without overflow: both halves of the bits apart."""
    return (int((array >> 32).sum()) << 32) + int((array & 0xFFFFFFFF).sum())


def _from_elements(values: Sequence[Any]) -> IntArray:
    # One pass at the speed of C over the types; the slow search runs only to name an offender.
    if not all(_is_integer(kind) for kind in set(map(type, values))):
        document, value = next((i, v) for i, v in enumerate(values) if not _is_integer(type(v)))
        raise PlanError(
            f"document {document} has length {value!r}, a {type(value).__name__}; lengths must be "
            "one-dimensional and integers that count tokens"
        )
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        document = next(i for i, value in enumerate(values) if abs(int(value)) > _INT64_MAX)
        raise PlanError(
            f"document {document} has length {values[document]}; expected at most {_INT64_MAX} tokens"
        ) from error


def _from_array(lengths: npt.ArrayLike) -> IntArray:
    try:
        array = np.asarray(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(
            f"lengths of type {type(lengths).__name__} do not turn into a NumPy array ({error}); "
            "hand in a list of ints or an array in main memory"
        ) from error
    if array.ndim != 1:
        raise PlanError(
            f"lengths has {array.ndim} dimensions (shape {array.shape}, from {type(lengths).__name__}); "
            "expected one integer for each document, as a list or a one-dimensional array"
        )
    if array.dtype == np.object_:
        return _from_elements(array.tolist())
    if array.size and array.dtype.kind not in "iu":
        raise PlanError(
            f"document 0 has length {array[0]!r} ({array.dtype}); lengths must be integers that count "
            "tokens, without nulls"
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        document = int(np.argmax(array > _INT64_MAX))
        raise PlanError(f"document {document} has length {array[document]}; expected at most {_INT64_MAX} tokens")
    return array.astype(np.int64)


def _is_integer(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool)

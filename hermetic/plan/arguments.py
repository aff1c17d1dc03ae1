"""What callers hand in, turned into plain integers and one array of them, or refused by name.

Nothing is rounded, wrapped or guessed: booleans and floats are refused even where Python would take them for
numbers, for a length that was a float was computed wrongly somewhere.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hermetic.constants import INT32_MAX
from hermetic.errors import PlanError
from hermetic.plan.arrays import INT64_MAX, IntArray, owned

STRATEGIES: Final = ("best_fit_decreasing", "optimal", "next_fit", "concat_then_split")
OVERFLOW_POLICIES: Final = ("error", "truncate", "split", "drop")

DEFAULT_TIME_LIMIT: Final = 60.0


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


def read_epoch(value: Any, seed: int | None) -> int:
    """Return ``epoch`` as an int of at least 0; without a seed it must be 0."""
    epoch = whole_number(value, "epoch", minimum=0)
    if epoch and seed is None:
        raise PlanError(f"epoch is {epoch}, but seed is None: without a seed all epochs are the same. Give a seed")
    return epoch


def read_align(value: Any, capacity: int) -> int:
    """Return ``align`` as an int of at least 1 that divides the capacity."""
    align = whole_number(value, "align", minimum=1)
    if capacity % align:
        raise PlanError(
            f"align is {align} and does not divide the capacity {capacity}; a row that is not a multiple of it "
            f"could not be filled. The nearest capacities are {capacity // align * align or align} and "
            f"{(capacity // align + 1) * align}"
        )
    return align


def read_time_limit(value: Any, strategy: str) -> float:
    """Return the seconds that strategy ``optimal`` may take; for any other strategy only None is valid."""
    if value is None:
        return DEFAULT_TIME_LIMIT
    if strategy != "optimal":
        raise PlanError(
            f"time_limit is {value!r}, but strategy {strategy!r} takes no time worth limiting; leave it out"
        )
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise PlanError(f"time_limit is {value!r}, a {type(value).__name__}; expected a number of seconds")
    seconds = float(value)
    if not (0 < seconds < math.inf):
        raise PlanError(f"time_limit is {value!r}; expected seconds above 0")
    return seconds


def refuse_limit_for_optimal(strategy: str, limit: int | None) -> None:
    """Raise ``PlanError`` if the optimal strategy is given a document limit, which its prices do not know."""
    if strategy == "optimal" and limit is not None:
        raise PlanError(
            f"max_documents_per_row is {limit}, and strategy 'optimal' cannot keep to it: its bound is proven for rows "
            "of any number of documents. Choose best_fit_decreasing, which can, or no limit"
        )


def read_lengths(lengths: npt.ArrayLike) -> IntArray:
    """Return document lengths as a read-only array of its own, ``[num_documents]``.

    An integer array is read in place, whatever its width; what is kept is one copy in 32 bits (64 if a length
    needs them), or the array itself if it is already that and read-only.

    Args:
        lengths: a sequence of ints, or anything that turns itself into an array: by ``__array__`` (NumPy,
            pandas, Arrow, torch), DLPack, or Arrow's ``__arrow_array__`` and ``__arrow_c_array__``.

    Raises:
        PlanError: not one-dimensional, not integers, a negative length, or more than 2**63 - 1 tokens in all.
            The message names the first offending document.
    """
    array = _from_elements(lengths) if isinstance(lengths, list | tuple) else _from_array(lengths)
    check_lengths(array)
    return owned(array, "lengths")


def check_lengths(array: IntArray) -> None:
    """Raise ``PlanError`` if a length is negative, or there are more documents or tokens than a plan can count."""
    if len(array) > INT32_MAX:
        raise PlanError(f"there are {len(array)} documents; expected at most {INT32_MAX}. Plan in several parts")
    if array.size and int(array.min()) < 0:
        document = int(np.argmax(array < 0))
        raise PlanError(f"document {document} has length {array[document]}; a length is 0 or more tokens")
    total = exact_sum(array)
    if total > INT64_MAX:
        raise PlanError(f"the lengths sum to {total} tokens; expected at most {INT64_MAX}. Plan in several parts")


def exact_sum(array: IntArray) -> int:
    """Return the sum of non-negative integers without overflow."""
    if int(array.max(initial=0)) * len(array) <= INT64_MAX:
        return int(array.sum(dtype=np.int64))
    return (int((array >> 32).sum(dtype=np.int64)) << 32) + int((array & 0xFFFFFFFF).sum(dtype=np.int64))


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
        document = next(i for i, value in enumerate(values) if abs(int(value)) > INT64_MAX)
        raise PlanError(
            f"document {document} has length {values[document]}; expected at most {INT64_MAX} tokens"
        ) from error


def _from_array(lengths: npt.ArrayLike) -> IntArray:
    try:
        array = _as_array(lengths)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
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
    if array.dtype == np.uint64 and array.size and int(array.max()) > INT64_MAX:
        document = int(np.argmax(array > INT64_MAX))
        raise PlanError(f"document {document} has length {array[document]}; expected at most {INT64_MAX} tokens")
    return array if array.size else np.empty(0, np.int64)


def _as_array(lengths: Any) -> npt.NDArray[Any]:
    if not hasattr(lengths, "__array__"):
        if hasattr(lengths, "__dlpack__"):
            return np.from_dlpack(lengths)
        if hasattr(lengths, "__arrow_array__") or hasattr(lengths, "__arrow_c_array__"):
            import pyarrow as pa

            return np.asarray(pa.array(lengths))
    return np.asarray(lengths)


def _is_integer(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool)

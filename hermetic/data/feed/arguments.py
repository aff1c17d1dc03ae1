"""What callers hand in, turned into plain integers or refused by name."""

from typing import Any, Final

from hermetic.errors import FeedError, PlanError
from hermetic.plan import arguments

RAGGED_ENDS: Final = ("carry", "drop", "short")


def whole_number(value: Any, name: str, *, minimum: int) -> int:
    """``value`` as an int of at least ``minimum``.

    Raises:
        FeedError: It is none.
    """
    try:
        return arguments.whole_number(value, name, minimum=minimum)
    except PlanError as error:
        raise FeedError(str(error)) from error


def read_seed(value: Any) -> int | None:
    """``value`` as a seed, or None for the natural order."""
    return None if value is None else whole_number(value, "seed", minimum=0)


def read_rank(rank: Any, num_ranks: int) -> int:
    """``rank`` as an int below ``num_ranks``."""
    number = whole_number(rank, "rank", minimum=0)
    if number >= num_ranks:
        raise FeedError(f"rank is {number} of {num_ranks} ranks, expected 0 to {num_ranks - 1}")
    return number


def read_choice(value: Any, name: str, valid: tuple[str, ...]) -> str:
    """``value`` if it is one of ``valid``."""
    if value not in valid:
        raise FeedError(f"{name} is {value!r}; expected one of: {', '.join(valid)}")
    return str(value)


def share(rows: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Where a rank's part of the rows of a last, incomplete step starts and stops; parts differ by one row at most.

    Example:
        >>> [share(5, rank, 3) for rank in range(3)]
        [(0, 2), (2, 4), (4, 5)]
    """
    size, more = divmod(rows, num_ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)

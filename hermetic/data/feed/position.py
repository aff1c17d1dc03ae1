"""Where a reading of all rows stands, without ranks, batches or workers in it.

Guarantee: two readings at one position have been given the same rows, however many they were. Price: five numbers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from hermetic.data.feed.states import check_format
from hermetic.errors import FeedError

FORMAT: Final = "hermetic.row_position"
VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPosition:
    """The rows before it have been given, the rows from it on have not.

    Example:
        Epoch 1, position 6: all rows of epoch 0 and the first 6 of epoch 1, in the order of the seed, have been given.
    """

    num_rows: int
    seed: int | None
    epoch: int
    position: int
    """Rows of the epoch that have been given, from 0 to ``num_rows - 1``."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data that JSON holds exactly."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "RowPosition":
        """Read what :meth:`state_dict` returned.

        Raises:
            FeedError: It is another thing, or there is no such position.
        """
        names = ("num_rows", "seed", "epoch", "position")
        check_format(state, FORMAT, VERSION, set(names))
        for name, lowest in (("num_rows", 1), ("epoch", 0), ("position", 0), ("seed", 0)):
            value = state[name]
            if not (type(value) is int and value >= lowest) and not (name == "seed" and value is None):
                raise FeedError(f"{name} of the position is {value!r}, expected a whole number of at least {lowest}")
        if state["position"] >= state["num_rows"]:
            raise FeedError(
                f"the position is {state['position']} of {state['num_rows']} rows, expected less; at the end of an "
                "epoch stands position 0 of the next"
            )
        return cls(**{name: state[name] for name in names})

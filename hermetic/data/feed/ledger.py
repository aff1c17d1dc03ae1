"""What a stream did with everything that it read.

Guarantee: ``tokens_read == tokens_placed + tokens_lost + tokens_waiting + tokens_left_out``, after each step, and it is
checked. Price: twelve numbers. They count what all ranks together were given, and are the same on each of them.
"""

from dataclasses import dataclass

from hermetic.errors import FeedError


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamLedger:
    """Counts of one pass of a stream.

    Example:
        Documents of 3, 9 and 0 tokens at capacity 8 under ``"drop"``: 3 read, 1 dropped, 1 empty; 12 tokens read,
        3 placed, 9 lost.
    """

    documents_read: int = 0
    documents_dropped: int = 0
    """Longer than a row, under ``on_overflow="drop"``."""

    documents_truncated: int = 0
    documents_empty: int = 0
    """Without a token, so in no row."""

    records_skipped: int = 0
    """Records of the source that are no document."""

    tokens_read: int = 0
    tokens_placed: int = 0
    """In rows that the ranks were given."""

    tokens_lost: int = 0
    """Cut off by ``"truncate"`` or left out by ``"drop"``."""

    tokens_waiting: int = 0
    """In the packer or in the buffer of rows; 0 at the end of a pass."""

    tokens_left_out: int = 0
    """In the rows that ``ragged_end="drop"`` leaves out at the end of a pass."""

    rows_placed: int = 0
    rows_left_out: int = 0

    def check(self) -> None:
        """Refuse a ledger that does not add up.

        Raises:
            FeedError: A token was read and is nowhere.
        """
        accounted = self.tokens_placed + self.tokens_lost + self.tokens_waiting + self.tokens_left_out
        if self.tokens_read != accounted:
            raise FeedError(
                f"the ledger does not add up: {self.tokens_read} tokens were read, and {accounted} are placed, lost, "
                "waiting or left out; load a state that no one changed"
            )

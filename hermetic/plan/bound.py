"""How few rows any plan could have: a certificate beside the plan.

**Algorithm.** Martello and Toth's bound L2 (1990) from the histogram of lengths. For every threshold k:
pieces above ``capacity - k`` share a row with nothing of k tokens or more, pieces above half the capacity
never share a row with each other, and the pieces from k to half the capacity fill what room those leave, then
new rows. The threshold 0 contains the volume bound ``ceil(tokens / capacity)``.
**Guarantee.** No plan of these pieces has fewer rows; the bound is not always reached.
**Price.** O(pieces + longest piece), vectorised.
"""

import numpy as np

from hermetic.plan.arrays import IntArray


def fewest_rows(lengths: IntArray, capacity: int, limit: int | None) -> int:
    """Return a number of rows that no plan of whole pieces of these ``lengths`` can go below.

    Example:
        Lengths ``[6, 6, 6]`` at capacity 10: 18 tokens need 2 rows by volume, but no two share a row: 3.
    """
    if len(lengths) == 0:
        return 0
    return max(_martello_toth(lengths, capacity), rows_by_count(len(lengths), limit))


def fewest_rows_of_stream(num_tokens: int, num_documents: int, capacity: int, limit: int | None) -> int:
    """Return a number of rows that no plan can go below even if it may cut documents anywhere."""
    if num_documents == 0:
        return 0
    return max(-(-num_tokens // capacity), rows_by_count(num_documents, limit))


def rows_by_count(num_pieces: int, limit: int | None) -> int:
    """Return the rows that ``num_pieces`` (at least one) need if none holds more than ``limit``."""
    return 1 if limit is None else -(-num_pieces // limit)


def _martello_toth(lengths: IntArray, capacity: int) -> int:
    counts = np.bincount(lengths)
    longest = len(counts) - 1
    # number[l] and volume[l]: pieces shorter than l and their tokens.
    number = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    volume = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts * np.arange(longest + 1))])
    half = min(capacity // 2, longest)
    threshold = np.arange(half + 1)
    largest = np.minimum(capacity - threshold, longest)  # the longest that may share a row with k tokens
    alone = number[longest + 1] - number[largest + 1]
    halves = number[largest + 1] - number[half + 1]
    room = halves * capacity - (volume[largest + 1] - volume[half + 1])
    small = volume[half + 1] - volume[threshold]
    rows = alone + halves + np.maximum(-((room - small) // capacity), 0)
    return int(rows.max())

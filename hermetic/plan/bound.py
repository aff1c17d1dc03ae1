"""How few rows any plan could have: a certificate beside the plan.

**Algorithm.** Martello and Toth's bound L2 (1990) from the histogram of sizes. For every threshold k: pieces
above ``capacity - k`` share a row with nothing of size k or more, pieces above half the capacity never share a
row with each other, and the pieces from k to half the capacity fill what room those leave, then new rows. Only
thresholds that are a size, or 0, can matter; 0 contains the volume bound ``ceil(volume / capacity)``.
**Guarantee.** No plan of these pieces has fewer rows; the bound is not always reached. Prices from column
generation (see ``certificate``) prove more, where somebody computed them.
**Price.** O(distinct sizes x log) from a histogram.
"""

import numpy as np

from hermetic.plan.histogram import Histogram


def fewest_rows(histogram: Histogram, capacity: int, limit: int | None) -> int:
    """Return a number of rows that no plan of whole pieces of these sizes can go below.

    Example:
        Sizes ``[6, 6, 6]`` at capacity 10: a volume of 18 needs 2 rows, but no two pieces share a row: 3.
    """
    if histogram.num_pieces == 0:
        return 0
    return max(_martello_toth(histogram, capacity), _rows_by_count(histogram.num_pieces, limit))


def fewest_rows_of_stream(volume: int, num_documents: int, capacity: int, limit: int | None) -> int:
    """Return a number of rows that no plan can go below even if it may cut documents anywhere."""
    return max(-(-volume // capacity), _rows_by_count(num_documents, limit))


def _rows_by_count(num_pieces: int, limit: int | None) -> int:
    return min(num_pieces, 1) if limit is None else -(-num_pieces // limit)


def _martello_toth(histogram: Histogram, capacity: int) -> int:
    sizes, counts = histogram.sizes[::-1], histogram.counts[::-1]
    # number[i] and volume[i]: pieces of the i smallest sizes and their volume. Pieces above half a row need less
    # than twice their volume in rows, and that volume is below 2**62, so no sum leaves int64.
    number = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    volume = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts * sizes)])
    half = np.searchsorted(sizes, capacity // 2, side="right")
    threshold = np.concatenate([np.zeros(1, np.int64), sizes[:half]])
    beside = np.maximum(np.searchsorted(sizes, capacity - threshold, side="right"), half)
    small = volume[half] - volume[np.searchsorted(sizes, threshold)]
    halves = number[beside] - number[half]
    room = halves * capacity - (volume[beside] - volume[half])
    rows = number[-1] - number[half] + np.maximum(-((room - small) // capacity), 0)
    return int(rows.max())

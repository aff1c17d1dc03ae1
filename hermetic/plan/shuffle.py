"""Other neighbours, same rows in number and in fill.

**Algorithm.** Pieces of equal size are exchanged among themselves and the rows are put into another order, both
by Fisher-Yates shuffles. The random numbers are those of SplitMix64, keyed by NumPy's ``SeedSequence`` of the seed
and the epoch; both are fixed algorithms of integers.
**Guarantee.** The multiset of sizes in each row stays as it was, so the number of rows, the utilization and every
limit stay too. The same seed and epoch give the same plan, on every platform and with every release of NumPy.
**Price.** A piece whose size is unique keeps neighbours of the same sizes; O(pieces + rows), 8 bytes a piece. A
number below n is drawn with a bias of at most n / 2**32, far below what any training could notice.
"""

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import IntArray, compiled
from hermetic.plan.histogram import Int64Array, histogram_from_sizes, pieces_in_decreasing_order

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def shuffled(
    order: IntArray, row_offsets: IntArray, sizes: IntArray, seed: int, epoch: int
) -> tuple[IntArray, IntArray]:
    """Return ``order``, which the caller gives away, and ``row_offsets`` after a seeded exchange.

    ``sizes`` belong to the pieces.
    """
    key = np.random.SeedSequence(seed, spawn_key=(epoch,))
    keys = key.generate_state(2, np.uint64)
    placed = sizes[order]
    histogram = histogram_from_sizes(placed)
    exchanged = order.astype(np.int32, copy=False)
    _exchange(exchanged, pieces_in_decreasing_order(placed, histogram), histogram.starts, keys[0])
    del placed
    permuted = np.empty_like(exchanged)  # Numba's own arrays belong to it, and a plan would copy them
    return permuted, _permute(exchanged, row_offsets.astype(np.int64), permuted, keys[1])


@compiled
def _exchange(
    order: npt.NDArray[np.int32], places: npt.NDArray[np.int32], starts: Int64Array, state: np.uint64
) -> None:
    """Shuffle what lies at ``places[starts[k]:starts[k + 1]]``, in place, for every k."""
    for key in range(len(starts) - 1):
        for last in range(starts[key + 1] - 1, starts[key], -1):
            state += _GOLDEN
            other = starts[key] + _below(last - starts[key] + 1, state)
            here, there = places[last], places[other]
            order[here], order[there] = order[there], order[here]


@compiled
def _permute(
    order: npt.NDArray[np.int32], row_offsets: Int64Array, permuted: npt.NDArray[np.int32], state: np.uint64
) -> Int64Array:
    """Fill ``permuted`` with the rows of ``order`` in another order and return their offsets."""
    rows = np.arange(len(row_offsets) - 1)
    for last in range(len(rows) - 1, 0, -1):
        state += _GOLDEN
        other = _below(last + 1, state)
        rows[last], rows[other] = rows[other], rows[last]
    offsets = np.zeros_like(row_offsets)
    place = 0
    for row in range(len(rows)):
        for source in range(row_offsets[rows[row]], row_offsets[rows[row] + 1]):
            permuted[place] = order[source]
            place += 1
        offsets[row + 1] = place
    return offsets


@compiled
def _below(number: int, state: np.uint64) -> int:
    """Return the number from 0 to ``number - 1`` that SplitMix64 gives at ``state``."""
    mixed = (state ^ (state >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    return int(((mixed >> np.uint64(32)) * np.uint64(number)) >> np.uint64(32))

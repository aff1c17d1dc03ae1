"""The one order of all rows, whoever reads them.

**Algorithm.** The rows of an epoch are permuted by a Fisher-Yates shuffle with the random numbers of SplitMix64, keyed
by NumPy's ``SeedSequence`` of the seed and the epoch; all are fixed algorithms of integers.
**Guarantee.** The order depends on the seed, the epoch and the number of rows, and on nothing else: no rank, no worker,
no release of NumPy. Each row is in each epoch once.
**Price.** O(rows) once an epoch and 4 bytes a row; where a batch reaches over the end of an epoch the permutations of
both are held, so 8 bytes a row. There may be 2**31 - 1 rows. A number below n is drawn with a bias of at most
n / 2**64.
"""

from typing import Final

import numpy as np

from hermetic.constants import INT32_MAX
from hermetic.errors import FeedError
from hermetic.plan.arrays import IntArray, compiled

_MASK: Final = 2**64 - 1
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


def key_of(seed: int, epoch: int, purpose: int) -> int:
    """A 64-bit key for one purpose in one epoch; different purposes get independent numbers."""
    return int(np.random.SeedSequence(seed, spawn_key=(epoch, purpose)).generate_state(1, np.uint64)[0])


def drawn(key: int, count: int, below: int) -> int:
    """The ``count``-th random number of ``key``, from 0 to ``below - 1``; nothing is kept between calls."""
    mixed = (key + (count + 1) * int(_GOLDEN)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * int(_FIRST)) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * int(_SECOND)) & _MASK
    mixed ^= mixed >> 31
    return (mixed * below) >> 64


def permutation(number: int, seed: int | None, epoch: int, purpose: int = 0) -> IntArray:
    """The numbers from 0 to ``number - 1`` in the order of an epoch; without a seed in their natural one.

    Example:
        >>> permutation(5, None, 3).tolist()
        [0, 1, 2, 3, 4]
    """
    rows: IntArray = np.arange(number, dtype=np.int32)
    if seed is not None:
        _shuffle(rows, np.uint64(key_of(seed, epoch, purpose)))
    rows.setflags(write=False)
    return rows


@compiled
def _shuffle(rows: IntArray, state: np.uint64) -> None:
    for last in range(len(rows) - 1, 0, -1):
        state += _GOLDEN
        mixed = (state ^ (state >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
        mixed ^= mixed >> np.uint64(31)
        # the upper 32 of the 96 bits of the product with last + 1, which has 31
        bound = np.uint64(last + 1)
        upper = (mixed >> _HALF) * bound + (((mixed & _LOW) * bound) >> _HALF)
        other = np.int64(upper >> _HALF)
        rows[last], rows[other] = rows[other], rows[last]


class RowOrder:
    """The endless sequence of all rows: the permutation of epoch 0, then that of epoch 1, and so on.

    Args:
        num_rows: rows of the dataset, from 1 to ``2**31 - 1``.
        seed: which sequence; None for the natural order in every epoch.

    Raises:
        FeedError: The number of rows is another.

    Example:
        >>> RowOrder(3, None).take(0, 1, 4).tolist()
        [1, 2, 0, 1]
    """

    def __init__(self, num_rows: int, seed: int | None) -> None:
        if not 1 <= num_rows <= INT32_MAX:
            raise FeedError(
                f"there are {num_rows} rows, expected from 1 to {INT32_MAX}; give the number of packed rows"
            )
        self.num_rows = num_rows
        self.seed = seed
        self._epochs: dict[int, IntArray] = {}

    def epoch(self, epoch: int) -> IntArray:
        """``[num_rows]``: all rows in the order of an epoch; the two epochs asked for last are kept."""
        if epoch not in self._epochs:
            self._epochs = dict(list(self._epochs.items())[-1:])
            self._epochs[epoch] = permutation(self.num_rows, self.seed, epoch)
        return self._epochs[epoch]

    def take(self, epoch: int, position: int, count: int) -> IntArray:
        """``[count]``: rows from ``position`` of ``epoch`` on, into the next epochs where it ends."""
        epoch, position = epoch + position // self.num_rows, position % self.num_rows
        parts = []
        while count > 0:
            part = self.epoch(epoch)[position : position + count]
            parts.append(part)
            count -= len(part)
            epoch, position = epoch + 1, 0
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.int32)])

    def __getstate__(self) -> tuple[int, int | None]:
        return self.num_rows, self.seed

    def __setstate__(self, state: tuple[int, int | None]) -> None:
        self.num_rows, self.seed = state
        self._epochs = {}

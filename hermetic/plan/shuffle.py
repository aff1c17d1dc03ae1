"""Other neighbours, same rows in number and in fill.

**Algorithm.** The rows are put into a random order, and pieces of equal length are exchanged among
themselves, both by permutations of a PCG64 generator.
**Guarantee.** The multiset of lengths in each row stays as it was, so the number of rows, the utilization and
every limit stay too. The same seed gives the same plan (NumPy may change its permutations between releases; a
saved plan does not change).
**Price.** A piece whose length is unique keeps its neighbours' lengths; O(documents + capacity).
"""

import numpy as np

from hermetic.plan.arrays import IntArray, group_by


def shuffled(order: IntArray, row_offsets: IntArray, lengths: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Return ``order`` and ``row_offsets`` after a seeded exchange; ``lengths`` belong to the pieces."""
    generator = np.random.Generator(np.random.PCG64(seed))
    order = _exchange_equal_lengths(order, lengths[order], generator)
    return _permute_rows(order, row_offsets, generator)


def _exchange_equal_lengths(order: IntArray, lengths: IntArray, generator: np.random.Generator) -> IntArray:
    num_keys = int(lengths.max(initial=0)) + 1
    places, _ = group_by(lengths, num_keys)
    permutation = generator.permutation(len(order))
    drawn, _ = group_by(lengths[permutation], num_keys)
    # places and permutation[drawn] list the same lengths in the same order: the k-th piece drawn takes place
    # k.
    exchanged = np.empty_like(order)
    exchanged[places] = order[permutation[drawn]]
    return exchanged


def _permute_rows(order: IntArray, row_offsets: IntArray, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    rows = generator.permutation(len(row_offsets) - 1)
    sizes = np.diff(row_offsets)[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    shift = np.repeat(row_offsets[rows] - offsets[:-1], sizes)
    return order[shift + np.arange(len(order))], offsets

"""The most valuable row: a bounded integer knapsack, compiled and exact.

**Algorithm.** Dynamic programming over the filled space. A size that occurs up to m times in a row becomes
packets of 1, 2, 4, ... pieces that add up to m, so that each packet is taken or not. Prices are integers:
nothing is rounded, and the maximum is a proof.
**Price.** O(capacity x packets) time, at most ``log2(m) + 1`` packets a size; one byte for each of these cells
where the rows themselves are wanted, and not only their value.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import compiled
from hermetic.plan.histogram import Histogram, Int64Array


class Packets(NamedTuple):
    """Which size each packet is of (its place in the histogram) and how many pieces it holds, ``[K]`` each."""

    key: Int64Array
    pieces: Int64Array


def packets_from_histogram(histogram: Histogram, capacity: int) -> Packets:
    """Return the packets of all sizes.

    Example:
        5 pieces of one size become packets of 1, 2 and 2: every number from 0 to 5 is a sum of some.
    """
    key, pieces = [], []
    for place, most in enumerate(most_in_a_row(histogram, capacity).tolist()):
        left, packet = most, 1
        while left > 0:
            key.append(place)
            pieces.append(min(packet, left))
            left -= pieces[-1]
            packet *= 2
    return Packets(np.array(key, np.int64), np.array(pieces, np.int64))


def most_in_a_row(histogram: Histogram, capacity: int) -> Int64Array:
    """Return how many pieces of each size one row could hold, ``[L]``."""
    return np.minimum(histogram.counts, capacity // histogram.sizes)


@compiled
def best_value(sizes: Int64Array, prices: Int64Array, packets: Packets, capacity: int) -> int:
    """Return the largest sum of prices that a row can hold."""
    best, before = np.zeros(capacity + 1, np.int64), np.empty(capacity + 1, np.int64)
    for packet in range(len(packets.key)):
        key, pieces = packets.key[packet], packets.pieces[packet]
        size, price = sizes[key] * pieces, prices[key] * pieces
        if price > 0:
            before[:] = best
            for space in range(size, capacity + 1):
                best[space] = max(before[space], before[space - size] + price)
    return int(best[capacity])


@compiled
def best_rows(
    sizes: Int64Array, prices: Int64Array, packets: Packets, capacity: int
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the largest sum for each space, ``[capacity + 1]``, and which packets reach it, ``[K, capacity + 1]``."""
    best, before = np.zeros(capacity + 1, np.int64), np.empty(capacity + 1, np.int64)
    taken = np.zeros((len(packets.key), capacity + 1), np.bool_)
    for packet in range(len(packets.key)):
        key, pieces = packets.key[packet], packets.pieces[packet]
        size, price = sizes[key] * pieces, prices[key] * pieces
        if price > 0:
            before[:] = best
            for space in range(size, capacity + 1):
                value = before[space - size] + price
                taken[packet, space] = value > before[space]
                best[space] = max(before[space], value)
    return best, taken


@compiled
def rows_from_taken(
    sizes: Int64Array, packets: Packets, taken: npt.NDArray[np.bool_], spaces: Int64Array
) -> Int64Array:
    """Return the pieces of each size in the best row of each of the ``spaces [S]``, ``[L, S]``."""
    rows = np.zeros((len(sizes), len(spaces)), np.int64)
    for row in range(len(spaces)):
        space = spaces[row]
        for packet in range(len(packets.key) - 1, -1, -1):
            if taken[packet, space]:
                key, pieces = packets.key[packet], packets.pieces[packet]
                rows[key, row] += pieces
                space -= sizes[key] * pieces
    return rows

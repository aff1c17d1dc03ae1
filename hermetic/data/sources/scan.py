"""The two questions about JSON that are asked of every byte, compiled.

Algorithm: one state machine over depth, string and escape; all structural characters are ASCII, so the bytes of UTF-8
need no decoding. Guarantee: the state goes in and out, so a file scanned block by block gives what it gives as one.
Price: about a nanosecond a byte. Numba renews its machine code when this file changes, so the kernels stand alone here.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import compiled

__all__ = ["deepest", "find_separators", "start_state"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
State: TypeAlias = npt.NDArray[np.int64]

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_OPEN_LIST, _CLOSE_LIST = ord("["), ord("]")
_OPEN_OBJECT, _CLOSE_OBJECT = ord("{"), ord("}")


@compiled
def _end_of_string(block: Bytes, place: int, escaped: int) -> tuple[int, int]:
    """Return the place of the quote that ends a string, or N; and whether the block ends after a backslash."""
    while place < len(block):
        byte = block[place]
        if escaped:
            escaped = 0
        elif byte == _BACKSLASH:
            escaped = 1
        elif byte == _QUOTE:
            break
        place += 1
    return place, escaped


@compiled
def find_separators(block: Bytes, state: State, found: State) -> int:
    """Find what ends the elements of the outermost array: commas at depth 1 and the bracket that closes it.

    A brace too many at depth 1 belongs to its element, which is then malformed alone and not with all that follow.

    Args:
        block: ``[N]`` bytes.
        state: ``[3]`` depth, in a string, after a backslash; replaced by the state reached. Depth 0: the array closed.
        found: ``[M]``, M at least N; takes the places in ``block``.

    Returns:
        How many were found; behind the bracket that closes the array nothing is looked at.
    """
    depth, inside, escaped = state[0], state[1], state[2]
    count, place = 0, 0
    while place < len(block) and depth > 0:
        if inside:
            place, escaped = _end_of_string(block, place, escaped)
            inside = int(place == len(block))
        elif block[place] == _QUOTE:
            inside = 1
        elif block[place] in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
        elif depth > 1:
            depth -= int(block[place] in (_CLOSE_LIST, _CLOSE_OBJECT))
        elif block[place] in (_COMMA, _CLOSE_LIST):
            found[count] = place
            count += 1
            depth = int(block[place] == _COMMA)
        place += 1
    state[0], state[1], state[2] = depth, inside, escaped
    return count


@compiled
def deepest(block: Bytes) -> int:
    """Return how many brackets and braces are open at once, at most."""
    depth, most, place = 0, 0, 0
    while place < len(block):
        byte = block[place]
        if byte == _QUOTE:
            place, _ = _end_of_string(block, place + 1, 0)
        elif byte in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
            most = max(most, depth)
        elif byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            depth -= 1
        place += 1
    return most


def start_state() -> State:
    """A new state between two elements of the outermost array: depth 1, outside a string, not after a backslash."""
    return np.array([1, 0, 0], np.int64)

"""Guess from position ids alone where documents start: the last resort, kept apart from what knows.

Algorithm: a document starts at the first token of a row and wherever the position does not go up by exactly
one. Multi-axis positions (a plane each for time, height and width, as vision-language models use) also
repeat and fall within a document, so there a row starts a new document where all planes are back at the
values of the row's first token; a row whose planes all agree is plain text and follows the one-plane rule.
Guarantee: edges lie at row starts at least, so rows never join. Price: a guess. Two documents whose
positions run on, such as [0, 1] and [2, 3], cannot be told from one; carry ``Boundaries`` instead wherever
they are known.
"""

import numpy as np
import numpy.typing as npt

from hermetic.batch.integers import IntArray, Integers, int64_array
from hermetic.errors import BoundariesError

_MULTI_AXIS = 3  # dimensions of [axes, rows, tokens]


def lengths_from_position_ids(position_ids: Integers, *, num_tokens: int | None = None) -> IntArray:
    """Guess document lengths from where positions stop counting up.

    Args:
        position_ids: [S], [B, S] or [A, B, S] (A planes of multi-axis positions).
        num_tokens: Leading tokens of the flattened [B * S] stream that are real. Default: all.

    Returns:
        int64 lengths of the documents found, each at least 1, summing to the number of real tokens.

    Raises:
        BoundariesError: For floats, booleans, negative positions, other dimensions, or too large
            ``num_tokens``.

    Example:
        >>> lengths_from_position_ids([3, 4, 5, 0, 1, 2])
        array([3, 3])
        >>> lengths_from_position_ids([[0, 1, 0], [1, 2, 3]])
        array([2, 1, 3])
    """
    positions = int64_array(position_ids, name="position_ids", ndims=(1, 2, _MULTI_AXIS), error=BoundariesError)
    _refuse_negative(positions)
    planes = positions if positions.ndim == _MULTI_AXIS else np.atleast_2d(positions)[np.newaxis]
    starts = _document_starts(planes).reshape(-1)
    if num_tokens is not None:
        if not isinstance(num_tokens, int | np.integer) or not 0 <= num_tokens <= starts.size:
            raise BoundariesError(
                f"num_tokens is {num_tokens}, expected 0 to {starts.size}, the tokens that position_ids of "
                f"shape {list(positions.shape)} describe; pass the number of real tokens"
            )
        starts = starts[:num_tokens]
    return np.diff(np.flatnonzero(starts), append=starts.size).astype(np.int64, copy=False)


def _document_starts(planes: IntArray) -> npt.NDArray[np.bool_]:
    """[A, B, S] positions to [B, S]: does a document start at this token?"""
    if planes.shape[0] == 0:
        raise BoundariesError(
            f"position_ids has no planes (shape {list(planes.shape)}), expected at least one axis; pass [B, S]"
        )
    first_plane = planes[0]
    starts = np.ones(first_plane.shape, dtype=np.bool_)
    starts[:, 1:] = np.diff(first_plane, axis=1) != 1
    if planes.shape[0] > 1:
        back_at_start = (planes == planes[:, :, :1]).all(axis=0)
        is_text = (planes == first_plane).all(axis=(0, 2))
        starts = np.where(is_text[:, np.newaxis], starts, back_at_start)
    return starts


def _refuse_negative(positions: IntArray) -> None:
    if positions.size and int(positions.min()) < 0:
        where = np.argwhere(positions < 0)[0].tolist()
        raise BoundariesError(
            f"position_ids{where} is {int(positions[tuple(where)])}, expected 0 or more; "
            f"positions count tokens from the start of a document"
        )

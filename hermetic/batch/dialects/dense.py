"""Dense masks, cell by cell, made and read.

Algorithm: two tokens are compared for every cell. Read, a document starts where a token does not see the one
before it; the mask that these documents make is then compared with the one that was read, cell by cell.
Guarantee: a mask that is read is exactly the block mask of what is returned. Price: T * T cells, therefore
capped; for eager models and for checking, not for training long rows. Empty documents have no cell, so that a
round trip drops them.
"""

import numpy as np
import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import all_lengths, without_tail
from hermetic.errors import BatchError

MAX_DENSE_SLOTS = 4096
"""A dense mask of 4,096 slots has 16.8 million cells: 16 MiB as booleans, 64 MiB as float32."""


def dense_mask(
    boundaries: Boundaries,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    num_slots: int | None = None,
) -> torch.Tensor:
    """Which token may attend to which, cell by cell.

    Args:
        boundaries: The documents.
        causal: A token sees no later token.
        window: A token sees itself and the ``window - 1`` tokens before it. Needs ``causal``.
        chunk: A token sees only its own chunk of so many tokens, counted from the document's start.
        num_slots: Tokens with the padded tail, which is one more segment. Default: no tail.

    Returns:
        [T, T] bool, True where the query (row) may see the key (column). The diagonal is always True.

    Raises:
        BatchError: For more than 4,096 slots, a window or chunk below 1, or a window without ``causal``.

    Example:
        >>> dense_mask(Boundaries.from_lengths([2, 1])).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    slots = boundaries.num_tokens if num_slots is None else num_slots
    _check_size(slots)
    _check_mask_options(causal=causal, window=window, chunk=chunk)
    lengths = all_lengths(boundaries, slots)
    segments = views.document_ids_from_lengths(lengths)
    positions = views.position_ids_from_lengths(lengths)
    steps_back = positions[:, None] - positions[None, :]
    allowed = segments[:, None] == segments[None, :]
    if causal:
        allowed &= steps_back >= 0
    if window is not None:
        allowed &= steps_back < window
    if chunk is not None:
        chunks = positions // chunk
        allowed &= chunks[:, None] == chunks[None, :]
    return allowed


def additive_mask(
    boundaries: Boundaries,
    *,
    dtype: torch.dtype,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    num_slots: int | None = None,
) -> torch.Tensor:
    """The dense mask as eager models add it to their scores.

    Eager attention adds its mask; a boolean one would add 1 where it should forbid, so this is the only form
    to hand to such a model.

    Args:
        boundaries: The documents.
        dtype: A floating dtype, the model's own.
        causal: As in ``dense_mask``.
        window: As in ``dense_mask``.
        chunk: As in ``dense_mask``.
        num_slots: As in ``dense_mask``.

    Returns:
        [1, 1, T, T] of ``dtype``: 0 where the query may see the key, else the dtype's lowest finite value.

    Raises:
        BatchError: If ``dtype`` is not floating, and as in ``dense_mask``.

    Example:
        >>> additive_mask(Boundaries.from_lengths([1, 1]), dtype=torch.float32)[0, 0] == 0
        tensor([[ True, False],
                [False,  True]])
    """
    if not dtype.is_floating_point:
        raise BatchError(f"dtype is {dtype}, expected a floating one; eager attention adds this mask to its scores")
    allowed = dense_mask(boundaries, causal=causal, window=window, chunk=chunk, num_slots=num_slots)
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
    return mask[None, None]


def boundaries_from_mask(
    mask: torch.Tensor, *, dtype: torch.dtype, causal: bool = True, num_tokens: int | None = None
) -> Boundaries:
    """Read the documents from a dense block mask, and make sure that it is one.

    Args:
        mask: [T, T] or [1, 1, T, T]. Floating: 0 where the query (row) may see the key (column), else the
            dtype's lowest finite value or minus infinity. Boolean: True where it may.
        dtype: What the mask is meant to be. Eager models need the floating form, so that a boolean mask is
            read only if ``torch.bool`` is asked for.
        causal: Whether a token sees no later token of its document, or every token of it.
        num_tokens: Real tokens; the one segment beyond them is the tail. Default: every segment is a
            document.

    Returns:
        The documents, none of them empty; ``dense_mask`` of them, with the tail, is the mask.

    Raises:
        BatchError: For another dtype or shape, more than 4,096 slots, a value that neither allows nor
            forbids, or a cell that documents without a window or chunks would not have.

    Example:
        >>> mask = additive_mask(Boundaries.from_lengths([3, 5]), dtype=torch.float32, num_slots=9)
        >>> boundaries_from_mask(mask, dtype=torch.float32, num_tokens=8)
        Boundaries(document_lengths=(3, 5))
    """
    allowed = _allowed_cells(_cells(mask, dtype)).cpu()
    starts = torch.ones(allowed.shape[0], dtype=torch.bool)
    starts[1:] = ~allowed.diagonal(-1)
    lengths = np.diff(np.flatnonzero(starts.numpy()), append=allowed.shape[0])
    segments = Boundaries.from_lengths(lengths)
    _check_rebuilt(allowed, segments, causal=causal)
    return without_tail(segments, num_tokens, name="mask")


def _check_size(slots: int) -> None:
    if slots > MAX_DENSE_SLOTS:
        raise BatchError(
            f"a dense mask of {slots} slots has {slots * slots} cells, expected at most {MAX_DENSE_SLOTS} "
            f"slots, for its memory grows with the square; seal the model or use packed_attention, which "
            f"need no mask"
        )


def _check_mask_options(*, causal: bool, window: int | None, chunk: int | None) -> None:
    for name, value in (("window", window), ("chunk", chunk)):
        if value is not None and value < 1:
            raise BatchError(f"{name} is {value}, expected 1 or more, for it counts the current token; or None")
    if window is not None and not causal:
        raise BatchError(
            f"window is {window} with causal=False, but a window reaches only back; expected causal=True or window=None"
        )


def _cells(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask as [T, T], if it is of the dtype and shape that were meant."""
    if dtype != torch.bool and not dtype.is_floating_point:
        raise BatchError(f"dtype is {dtype}, expected a floating one or torch.bool; numbers in a mask mean neither")
    if mask.dtype != dtype:
        raise BatchError(
            f"mask has dtype {mask.dtype}, expected {dtype}; eager attention adds its mask, so that a boolean one "
            f"forbids nothing there: make it with additive_mask, or pass dtype={mask.dtype} if that is meant"
        )
    cells = mask[0, 0] if mask.ndim == 4 and mask.shape[:2] == (1, 1) else mask
    if cells.ndim != 2 or cells.shape[0] != cells.shape[1]:
        raise BatchError(
            f"mask has shape {list(mask.shape)}, expected [T, T] or [1, 1, T, T]; read the mask of each row by itself"
        )
    _check_size(cells.shape[0])
    return cells


def _allowed_cells(cells: torch.Tensor) -> torch.Tensor:
    if cells.dtype == torch.bool:
        return cells
    allowed = cells == 0
    lowest = torch.finfo(cells.dtype).min
    unclear = (~allowed & ~(cells <= lowest)).nonzero()
    if len(unclear):
        query, key = unclear[0].tolist()
        raise BatchError(
            f"mask[{query}, {key}] is {float(cells[query, key])}, expected 0 (may see) or {lowest} or -inf (may not), "
            f"for any other value only nudges; make the mask with additive_mask"
        )
    return allowed


def _check_rebuilt(allowed: torch.Tensor, segments: Boundaries, *, causal: bool) -> None:
    wrong = (allowed != dense_mask(segments, causal=causal)).nonzero()
    if len(wrong):
        query, key = wrong[0].tolist()
        ids = segments.document_ids
        verb = "may" if bool(allowed[query, key]) else "may not"
        relation = "the same document" if ids[query] == ids[key] else "different documents"
        raise BatchError(
            f"mask[{query}, {key}]: token {query} {verb} see token {key}, though who sees the token before puts them "
            f"into {relation}; expected the block mask of documents with causal={causal} and neither window nor "
            f"chunks; pass the boundaries that the mask was made from"
        )

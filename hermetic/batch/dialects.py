"""The same boundaries in the words of others: kernels, models and masks that do not know ``Boundaries``.

Algorithm: renames and O(tokens) rearrangements, all pure. Guarantee: nothing is guessed; a dialect that
cannot hold what the boundaries say is an error. Where a batch has a padded tail, the tail is exactly one
more segment here, for kernels must be told of every slot. Price: the dense masks take T * T cells and are
therefore capped; they are for eager models and for checking, not for training long rows.
"""

from typing import TypedDict

import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.constants import IGNORE_INDEX, INT32_MAX
from hermetic.errors import BatchError

MAX_DENSE_SLOTS = 4096
"""A dense mask of 4,096 slots has 16.8 million cells: 16 MiB as booleans, 64 MiB as float32."""


class FlashKwargs(TypedDict):
    """The keyword arguments by which transformers' flash attention learns of documents."""

    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def flash_kwargs(boundaries: Boundaries, *, num_slots: int) -> FlashKwargs:
    """Edges for transformers' variable-length attention.

    Args:
        boundaries: The documents.
        num_slots: Tokens of the batch with its padded tail.

    Returns:
        int32 CPU edges over all slots, the tail as one more segment, and the longest segment as a Python int.

    Raises:
        BatchError: If there are fewer slots than tokens, or more than int32 can index.

    Example:
        >>> kwargs = flash_kwargs(Boundaries.from_lengths([3, 5]), num_slots=9)
        >>> kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
        (tensor([0, 3, 8, 9], dtype=torch.int32), 5)
    """
    lengths = _all_lengths(boundaries, num_slots)
    edges = views.cu_seqlens_from_lengths(lengths)
    longest = max(lengths, default=0)
    return FlashKwargs(cu_seq_lens_q=edges, cu_seq_lens_k=edges, max_length_q=longest, max_length_k=longest)


def shift_labels(labels: torch.Tensor, boundaries: Boundaries) -> torch.Tensor:
    """Targets for losses that expect the next token beside the current one.

    Args:
        labels: [T] unshifted, a padded tail allowed.
        boundaries: The documents.

    Returns:
        [T]: at each token the label of the next one, and -100 where the next one is another document's, or
        none.

    Raises:
        BatchError: If labels are not one dimension or fewer than the documents' tokens.

    Example:
        >>> shift_labels(torch.tensor([10, 11, 12, 20, 21]), Boundaries.from_lengths([3, 2]))
        tensor([  11,   12, -100,   21, -100])
    """
    if labels.ndim != 1:
        raise BatchError(f"labels have shape {list(labels.shape)}, expected [T]; flatten the rows to one stream")
    starts = views.first_tokens_from_lengths(_all_lengths(boundaries, labels.shape[0])).to(labels.device)
    unreachable = labels.index_fill(0, starts, IGNORE_INDEX)
    return torch.nn.functional.pad(unreachable[1:], (0, min(1, labels.shape[0])), value=IGNORE_INDEX)


def stacked_cu_seqlens(boundaries: Boundaries, row_length: int) -> torch.Tensor:
    """Edges row by row, for code that keeps rows as [B, row_length].

    Args:
        boundaries: Documents that fill rows of ``row_length`` tokens one after the other.
        row_length: Tokens of each row.

    Returns:
        [B, E] int32: the edges of each row from 0 to ``row_length``; shorter ones repeat their last edge.

    Raises:
        BatchError: If a document crosses the end of a row, or the rows are not full.

    Example:
        >>> stacked_cu_seqlens(Boundaries.from_lengths([3, 3, 2, 2, 2]), 6)
        tensor([[0, 3, 6, 6],
                [0, 2, 4, 6]], dtype=torch.int32)
    """
    if row_length < 1 or boundaries.num_tokens % row_length:
        raise BatchError(
            f"{boundaries.num_tokens} tokens do not fill rows of row_length {row_length}; expected a "
            f"positive divisor, so give each row's padding a document of its own or use the flat edges"
        )
    rows: list[list[int]] = []
    edge = 0
    for index, length in enumerate(boundaries.document_lengths):
        within = edge % row_length
        if within + length > row_length:
            raise BatchError(
                f"document {index} of {length} tokens crosses the end of row {edge // row_length} at token "
                f"{within} of {row_length}; expected whole documents in each row, so plan the rows for this "
                f"row_length"
            )
        if length and within == 0:
            rows.append([0])
        if length:
            rows[-1].append(within + length)
        edge += length
    width = max(map(len, rows), default=0)
    padded = [row + [row_length] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int32).reshape(len(rows), width)


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
    _check_mask_options(slots, causal=causal, window=window, chunk=chunk)
    lengths = _all_lengths(boundaries, slots)
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


def _all_lengths(boundaries: Boundaries, num_slots: int) -> tuple[int, ...]:
    if not boundaries.num_tokens <= num_slots <= INT32_MAX:
        raise BatchError(
            f"num_slots is {num_slots}, expected {boundaries.num_tokens} (the documents' tokens) to "
            f"{INT32_MAX}; pass the length of the very tensor that the boundaries describe"
        )
    return views.lengths_with_tail(boundaries.document_lengths, num_slots)


def _check_mask_options(slots: int, *, causal: bool, window: int | None, chunk: int | None) -> None:
    if slots > MAX_DENSE_SLOTS:
        raise BatchError(
            f"a dense mask of {slots} slots has {slots * slots} cells, expected at most {MAX_DENSE_SLOTS} "
            f"slots, for its memory grows with the square; seal the model or use packed_attention, which "
            f"need no mask"
        )
    for name, value in (("window", window), ("chunk", chunk)):
        if value is not None and value < 1:
            raise BatchError(f"{name} is {value}, expected 1 or more, for it counts the current token; or None")
    if window is not None and not causal:
        raise BatchError(
            f"window is {window} with causal=False, but a window reaches only back; expected causal=True or window=None"
        )

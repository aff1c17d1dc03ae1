"""FlexAttention's BlockMask straight from the boundaries: the mask is never evaluated.

Algorithm: under every pattern (causal or not, window, chunk) a token sees one interval of keys, and neither end
of the interval ever falls from one token to the next. So the key blocks that a block of queries sees at all run
from the first key of its first query to the last key of its last query, and those that it sees in full from the
first key of its last query to the last key of its first query. Seen from the keys, the same ends are searched.
Guarantee: the same tensors as ``create_block_mask`` makes of the same rule, element by element.
Price: O(tokens) for the ends of the intervals, and four ``[N, N]`` int32 tables for ``N`` blocks, which is what a
BlockMask is; no ``[T, T]`` anything. All of it runs on the device, after one copy of the lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hermetic.batch import Boundaries
from hermetic.errors import AttentionError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK_SIZE = 128
"""Tokens of a block, as FlexAttention's kernels have it by default."""

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(batch, head, query, key) -> bool``: FlexAttention's question about one cell."""


def block_mask_from_boundaries(
    boundaries: Boundaries,
    *,
    num_slots: int | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    device: torch.device | str = "cpu",
    block_size: int = BLOCK_SIZE,
) -> "BlockMask":
    """Make the BlockMask under which ``flex_attention`` attends inside each document.

    Args:
        boundaries: where each document starts and ends.
        num_slots: tokens ``T`` of the row with its padded tail, by default without one. The tail is one more
            document here, so that no row of scores is masked as a whole.
        causal: a token sees itself and earlier tokens of its document; otherwise its whole document.
        window: a token sees itself and the ``window - 1`` tokens before it (causal only).
        chunk: a token sees its own chunk only; chunks are counted from its document's start.
        device: where the mask is wanted.
        block_size: tokens of a block of queries and of a block of keys.

    Returns:
        A mask of shape ``[1, 1, T, T]``. Its ``mask_mod`` reads the interval of each token from two ``[T]``
        tensors, so a kernel that was compiled for one batch serves all batches of ``T`` tokens.

    Raises:
        AttentionError: there is no slot, fewer slots than tokens, or the options do not fit each other.

    Example:
        >>> mask = block_mask_from_boundaries(Boundaries.from_lengths([2, 3]), block_size=1)
        >>> mask.to_dense()[0, 0]
        tensor([[1, 0, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [0, 0, 1, 0, 0],
                [0, 0, 1, 1, 0],
                [0, 0, 1, 1, 1]], dtype=torch.int32)
    """
    from torch.nn.attention.flex_attention import BlockMask

    total = boundaries.num_tokens if num_slots is None else num_slots
    _validate(boundaries, total, {"window": window, "chunk": chunk, "block_size": block_size}, causal=causal)
    lengths = (*boundaries.document_lengths, total - boundaries.num_tokens)
    first, last = visible_interval(lengths, causal=causal, window=window, chunk=chunk, device=device)
    by_query = _spans(first, last, block_size)
    keys, by_key = _index_tables(by_query), _index_tables(_transposed(by_query))
    return BlockMask(
        seq_lengths=(total, total),
        kv_num_blocks=keys.partial_counts,
        kv_indices=keys.partial,
        full_kv_num_blocks=keys.full_counts,
        full_kv_indices=keys.full,
        q_num_blocks=by_key.partial_counts,
        q_indices=by_key.partial,
        full_q_num_blocks=by_key.full_counts,
        full_q_indices=by_key.full,
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=_mask_mod(first, last),
    )


def visible_interval(
    lengths: tuple[int, ...], *, causal: bool, window: int | None, chunk: int | None, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last key that each token of the row sees, both ``[T]`` int32.

    Documents of 2 and 3, causal, window 2: first ``[0, 0, 2, 2, 3]`` and last ``[0, 1, 2, 3, 4]``.
    """
    total = sum(lengths)
    sizes = torch.tensor(lengths, dtype=torch.int32, device=device)
    ends = sizes.cumsum(0, dtype=torch.int32)
    begin = (ends - sizes).repeat_interleave(sizes, output_size=total)
    end = ends.repeat_interleave(sizes, output_size=total)
    token = torch.arange(total, dtype=torch.int32, device=device)
    if chunk is not None and chunk < total:
        begin = token - (token - begin) % chunk
        end = torch.minimum(begin + chunk, end)
    if window is not None and window < total:
        begin = torch.maximum(begin, token - (window - 1))
    return begin, token if causal else end - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spans:
    """For each block of one side, ``[N]`` each: which blocks of the other side it meets; ends are exclusive.

    A span of full blocks whose end is not beyond its beginning is empty.
    """

    begin: torch.Tensor
    end: torch.Tensor
    full_begin: torch.Tensor
    full_end: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _IndexTables:
    """One side of a BlockMask: counts ``[1, 1, N]``, indices ``[1, 1, N, N]``, int32."""

    partial_counts: torch.Tensor
    partial: torch.Tensor
    full_counts: torch.Tensor
    full: torch.Tensor


def _spans(first: torch.Tensor, last: torch.Tensor, block_size: int) -> _Spans:
    """The key blocks of each query block, from the intervals of its first and its last query alone."""
    total = first.shape[0]
    head = torch.arange(0, total, block_size, device=first.device)
    foot = (head + (block_size - 1)).clamp(max=total - 1)
    full_begin = (first[foot] + (block_size - 1)) // block_size
    if total % block_size:
        full_begin[-1] = head.shape[0]  # queries beyond the row see nothing, so their block sees no block in full
    return _Spans(
        begin=first[head] // block_size,
        end=last[foot] // block_size + 1,
        full_begin=full_begin,
        full_end=(last[head] + 1) // block_size,
    )


def _transposed(spans: _Spans) -> _Spans:
    """The query blocks of each key block: those that begin no later than it and end beyond it."""
    block = torch.arange(spans.begin.shape[0], dtype=torch.int32, device=spans.begin.device)

    def reaching(edges: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(edges, block, right=True, out_int32=True)

    return _Spans(
        begin=reaching(spans.end),
        end=reaching(spans.begin),
        full_begin=reaching(spans.full_end),
        full_end=reaching(spans.full_begin),
    )


def _index_tables(spans: _Spans) -> _IndexTables:
    """Rows list their blocks in ascending order, then all others in ascending order, as ``create_block_mask`` does."""
    begin, end = spans.begin, spans.end
    has_full = spans.full_end > spans.full_begin
    full_begin = torch.where(has_full, spans.full_begin, begin)
    full_end = torch.where(has_full, spans.full_end, begin)
    full_counts = full_end - full_begin
    none = torch.zeros_like(begin)
    whole = torch.full_like(begin, begin.shape[0])
    full = _rows_of_runs((full_begin, full_end), (none, full_begin), (full_end, whole))
    partial = _rows_of_runs((begin, full_begin), (full_end, end), (none, begin), (full_begin, full_end), (end, whole))
    return _IndexTables(
        partial_counts=(end - begin - full_counts)[None, None],
        partial=partial[None, None],
        full_counts=full_counts[None, None],
        full=full[None, None],
    )


def _rows_of_runs(*runs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """``[N, N]``: in each row the numbers of one run ``begin .. end - 1`` after the other; together they are N.

    A row is the running sum of its steps: 1 within a run, and a jump where the next one starts.
    """
    begins = torch.stack([begin for begin, _ in runs], dim=1)
    sizes = torch.stack([end for _, end in runs], dim=1) - begins
    columns = sizes.cumsum(1) - sizes
    shifts = begins - columns
    jumps = shifts.diff(dim=1, prepend=torch.ones_like(shifts[:, :1]))
    count = begins.shape[0]
    jumps = jumps.where(columns < count, 0)  # runs that start behind the last column are empty
    table = torch.ones(count, count, dtype=torch.int32, device=begins.device)
    return table.scatter_add_(1, columns.clamp(max=count - 1), jumps.int()).cumsum_(1)


def _mask_mod(first: torch.Tensor, last: torch.Tensor) -> MaskMod:
    """One rule for all patterns; boundaries are its data, so changing them asks for no new kernel."""

    def mask_mod(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key >= first[query]) & (key <= last[query])

    return mask_mod


def _validate(boundaries: Boundaries, num_slots: int, sizes: dict[str, int | None], *, causal: bool) -> None:
    if num_slots < max(1, boundaries.num_tokens):
        raise AttentionError(
            f"num_slots is {num_slots} and boundaries describe {boundaries.num_tokens} tokens; "
            "expected at least one slot and one for each token"
        )
    for name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise AttentionError(f"{name} is {size!r}; expected a Python int of at least 1 token")
    if sizes["window"] is not None and not causal:
        raise AttentionError(
            f"window is {sizes['window']} with causal=False; a window counts tokens before the current one, "
            "so it needs causal=True"
        )

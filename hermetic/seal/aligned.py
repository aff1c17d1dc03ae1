"""Arguments of a token mixer, from packed rows to right-padded batches of documents and back.

Algorithm: in each tensor the axis (or, in a mask, the two axes) as long as a row is the tokens' and the first
axis as long as the batch is the rows'. Both become the documents of one group: ``[B, S, C]`` to ``[rows, width,
C]``, ``[3, B, S]`` to ``[3, rows, width]``, ``[B, 1, S, S]`` to its diagonal blocks. What has no token axis
stays as it is.
Guarantee: pads hold zeros in what is laid out, are no key in a mask, and their outputs are thrown away.
Price: one gather per tensor and group.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from hermetic.errors import SealError
from hermetic.seal.channel import PackedForward

MAX_SLOTS_PER_TOKEN = 1.25
"""A group takes at most a quarter more slots than it has tokens."""

Path = tuple[str | int, ...]
"""Where a tensor lies among the arguments or results of a call: ``("position_embeddings", 0)``."""

Axes = dict[Path, tuple[int, ...]]
"""The token axes of each tensor of a call, as a run over one document of known length has shown them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """One group of documents of a packed batch, with its indices on the device."""

    rows: int
    width: int
    lengths: torch.Tensor
    """``[rows]``."""
    stream: torch.Tensor
    """``[rows, width]``: the place in the stream behind each slot; pads point at their document's first token."""
    batch_row: torch.Tensor
    """``[rows]``: the batch row that holds each document."""
    real: torch.Tensor | None
    """``[rows, width]`` booleans; ``None`` when no slot is a pad."""

    @property
    def is_real(self) -> torch.Tensor:
        """``[rows, width]`` booleans."""
        return torch.ones_like(self.stream, dtype=torch.bool) if self.real is None else self.real


UNPACKED: ContextVar[Documents | None] = ContextVar("hermetic_unpacked", default=None)
"""The group of documents that an unpacked module runs on just now, for the instruments that watch it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All groups of a packed batch and the way back."""

    groups: tuple[Documents, ...]
    back: torch.Tensor
    """``[B * S]``: each token's place in the concatenation of the groups' real slots."""
    padded_share: float
    """Pads per slot."""


@lru_cache(maxsize=16)
def layout_of(packed: PackedForward, device: torch.device, *, exact: bool) -> Layout:
    """The groups of a batch: documents of similar length, or with ``exact`` of equal length, without pads.

    A pure function of values, so remembering it cannot go stale; the tensors are never written to.
    """
    lengths = torch.tensor(packed.lengths)
    first = lengths.cumsum(0) - lengths
    with torch.inference_mode(mode=False):  # autograd may save them for a later backward
        parts = [_documents(lengths[part], first[part], packed.num_slots) for part in _groups(packed.lengths, exact)]
        order = torch.cat([part.stream[part.is_real] for part in parts])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        slots = sum(part.stream.numel() for part in parts)
        groups = tuple(_on_device(part, device) for part in parts)
        return Layout(groups=groups, back=back.to(device), padded_share=1 - len(order) / slots)


def _groups(lengths: tuple[int, ...], exact: bool) -> list[list[int]]:  # noqa: FBT001 - private
    """Documents, longest first, cut wherever one more would make too many pads; empty ones are left out."""
    allowance = 1.0 if exact else MAX_SLOTS_PER_TOKEN
    parts: list[list[int]] = []
    real = 0
    for document in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        real += lengths[document]
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= allowance * real:
            parts[-1].append(document)
        else:
            parts.append([document])
            real = lengths[document]
    return parts


def _documents(lengths: torch.Tensor, first: torch.Tensor, num_slots: int) -> Documents:
    width = int(lengths.max())
    place = torch.arange(width)
    real = place < lengths[:, None]
    return Documents(
        rows=len(lengths),
        width=width,
        lengths=lengths,
        stream=torch.where(real, first[:, None] + place, first[:, None]),
        batch_row=first // num_slots,
        real=None if bool(real.all()) else real,
    )


def _on_device(group: Documents, device: torch.device) -> Documents:
    return replace(
        group,
        lengths=group.lengths.to(device),
        stream=group.stream.to(device),
        batch_row=group.batch_row.to(device),
        real=None if group.real is None else group.real.to(device),
    )


def mapped(values: Any, change: Callable[[Path, torch.Tensor], Any], path: Path = ()) -> Any:
    """The same nest of tuples, lists and dictionaries with every tensor replaced."""
    if isinstance(values, torch.Tensor):
        return change(path, values)
    if isinstance(values, dict):
        changed = {name: mapped(value, change, (*path, name)) for name, value in values.items()}
        return changed if type(values) is dict else type(values)(**changed)  # transformers' ModelOutput
    if type(values) in {tuple, list}:
        return type(values)(mapped(value, change, (*path, i)) for i, value in enumerate(values))
    return values


def tensors_in(values: Any) -> dict[Path, torch.Tensor]:
    """Every tensor of a nest, by its path."""
    found: dict[Path, torch.Tensor] = {}
    mapped(values, found.__setitem__)
    return found


def token_axes(tensor: torch.Tensor, num_slots: int, known: tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes of a tensor along which the tokens of a row lie: none, one, or two in a mask.

    Raises:
        SealError: sizes alone do not tell which axes they are.
    """
    if known is not None and all(axis < tensor.ndim and tensor.shape[axis] == num_slots for axis in known):
        return known
    axes = tuple(axis for axis, size in enumerate(tensor.shape) if size == num_slots)
    if len(axes) > 2 or (len(axes) == 2 and axes[1] != axes[0] + 1):
        raise SealError(
            f"a tensor of shape {tuple(tensor.shape)} has several axes as long as a row ({num_slots}), and which of "
            "them are the tokens' cannot be told; pad the row to another length"
        )
    return axes


def lay_out(tensor: torch.Tensor, axes: tuple[int, ...], packed: PackedForward, group: Documents) -> torch.Tensor:
    """A tensor of packed rows as one of the group's documents."""
    if not axes:
        return tensor
    if len(axes) == 2:
        return _blocks(tensor, axes, packed, group)
    batch = _batch_axis(tensor, axes[0], packed.num_rows)
    if batch is None:
        return _shared_by_rows(tensor, axes[0], group)
    if batch < 0:
        return _folded(tensor, packed, group)
    stream = _as_stream(tensor, batch, axes[0], packed.num_rows)
    laid = stream.index_select(0, group.stream.flatten()).unflatten(0, (group.rows, group.width))
    if group.real is not None:
        laid = laid.masked_fill(~group.real.view(group.rows, group.width, *[1] * (laid.ndim - 2)), 0)
    return _moved(laid, (0, 1), (batch, axes[0]))


def lay_back(parts: list[torch.Tensor], axis: int, packed: PackedForward, layout: Layout) -> torch.Tensor:
    """One tensor per group, tokens along ``axis``, as one of packed rows."""
    batch = 0 if axis else 1
    real = []
    for part, group in zip(parts, layout.groups, strict=True):
        stream = _moved(part, (batch, axis), (0, 1))
        if len(stream) == 1:  # made of positions that all rows share
            stream = stream.expand(group.rows, *stream.shape[1:])
        real.append(stream.flatten(0, 1) if group.real is None else stream[group.real])
    joined = torch.cat(real).index_select(0, layout.back)
    return _moved(joined.unflatten(0, (packed.num_rows, packed.num_slots)), (0, 1), (batch, axis))


def _batch_axis(tensor: torch.Tensor, token: int, num_rows: int) -> int | None:
    """The axis of the rows; -1 when heads are folded into it; ``None`` when all rows share the tensor."""
    if tensor.ndim == 3 and token == 2 and tensor.shape[0] > tensor.shape[1] == 1 and tensor.is_floating_point():
        return -1  # [B * H, 1, S]; integers of this shape are the planes of multi-axis positions
    for axis in range(token):
        if tensor.shape[axis] == num_rows:
            return axis
    for axis in range(token):
        if tensor.shape[axis] == 1:
            return axis
    if token == 0 and tensor.ndim > 1 and tensor.shape[1] == num_rows:
        return 1
    return None


def _as_stream(tensor: torch.Tensor, batch: int, token: int, num_rows: int) -> torch.Tensor:
    """``[B * S, ...]`` with the other axes in their order."""
    moved = _moved(tensor, (batch, token), (0, 1))
    return moved.expand(num_rows, *moved.shape[1:]).flatten(0, 1)


def _shared_by_rows(tensor: torch.Tensor, token: int, group: Documents) -> torch.Tensor:
    """``[S, ...]``, no row axis: the part of the group's longest document, of which the others are the beginning."""
    longest = int(group.lengths.argmax())
    return tensor.index_select(token, group.stream[longest] % tensor.shape[token])


def _folded(tensor: torch.Tensor, packed: PackedForward, group: Documents) -> torch.Tensor:
    """``[B * H, 1, S]`` to ``[rows * H, 1, width]``, as ALiBi biases come."""
    by_row = tensor.unflatten(0, (packed.num_rows, -1))
    stream = _as_stream(by_row, 0, 3, packed.num_rows)
    laid = stream.index_select(0, group.stream.flatten()).unflatten(0, (group.rows, group.width))
    return _moved(laid, (1,), (3,)).flatten(0, 1)


def _blocks(tensor: torch.Tensor, axes: tuple[int, ...], packed: PackedForward, group: Documents) -> torch.Tensor:
    """``[B, ..., S, S]`` to ``[rows, ..., width, width]``: each document's block of a mask or bias; pads are no key."""
    if tensor.ndim == 2 or tensor.shape[0] not in {1, packed.num_rows}:
        tensor = tensor[None]
        axes = tuple(axis + 1 for axis in axes)
    rows = tensor.expand(packed.num_rows, *tensor.shape[1:]) if tensor.shape[0] == 1 else tensor
    place = group.stream % packed.num_slots
    moved = _moved(rows, axes, (1, 2))
    blocks = moved[group.batch_row[:, None, None], place[:, :, None], place[:, None, :]]
    if group.real is not None:
        pads = ~group.real[:, None, :].expand(-1, group.width, -1)
        blocked: float | bool = False if tensor.dtype == torch.bool else torch.finfo(tensor.dtype).min
        blocks = blocks.masked_fill(pads.view(*pads.shape, *[1] * (blocks.ndim - 3)), blocked)
    return _moved(blocks, (1, 2), axes)


def _moved(tensor: torch.Tensor, source: tuple[int, ...], destination: tuple[int, ...]) -> torch.Tensor:
    moved: torch.Tensor = tensor.movedim(source, destination)
    return moved

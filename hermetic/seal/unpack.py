"""Unpack, run, repack: any token mixer, on its documents as a right-padded batch.

Algorithm: the module's ``forward`` is shadowed on the instance. In a packed forward every argument that is
aligned with the tokens is laid out as one batch of documents per group of similar length (``aligned``), the
module's own forward runs on each, and the outputs are laid back. Everything else in the model stays packed.
Guarantee: the module never sees two documents in one row; pads are no key and their outputs are thrown away.
Pads stand to the right, so a causal module cannot see them; any other gets documents of equal length together.
Price: one gather per aligned tensor, one run of the module per group, and at most a quarter more slots.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hermetic.attention.reference import allowed
from hermetic.errors import SealError
from hermetic.seal.aligned import (
    UNPACKED,
    Axes,
    Documents,
    Layout,
    Path,
    lay_back,
    lay_out,
    layout_of,
    mapped,
    tensors_in,
    token_axes,
)
from hermetic.seal.channel import PackedForward, Ticket, outside_graphs, packed_forward, reopened


class Unpacked:
    """Stands in for the ``forward`` of one module."""

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str,
        reason: str,
        original: str,
        arguments: Axes,
        results: Axes,
        exact: bool,
        restarts: dict[Path, int],
        masks: dict[Path, torch.dtype],
    ) -> None:
        """Stand in for ``module.forward``.

        Args:
            module: whose forward it is.
            name: of the module in the model.
            reason: why it is unpacked, for people.
            original: the attention implementation that the model has without the seal.
            arguments: token axes of its arguments, as a run over one document has shown them.
            results: token axes of its results.
            exact: group documents of equal length only, without pads.
            masks: dtypes of its arguments, by which one that is a ticket becomes the mask it stands for.
            restarts: positions that count on through the row, and what they start at in a document.
        """
        self.module = module
        self.name = name
        self.reason = reason
        self.original = original
        self.arguments = arguments
        self.results = results
        self.exact = exact
        self.restarts = restarts
        self.masks = masks
        self.tables = [one for one in module.modules() if one._buffers and next(one.parameters(), None) is None]  # noqa: SLF001 - with those that are not saved
        self.shadowed = vars(module).get("forward")
        self.forget_padding()

    def forget_padding(self) -> None:
        """Count from here on."""
        self.tokens = 0
        self.slots = 0

    def install(self) -> None:
        """Shadow the module's forward."""
        self.module.forward = self

    def remove(self) -> None:
        """Give the module back as it was."""
        if self.shadowed is None:
            del self.module.forward
        else:
            self.module.forward = self.shadowed

    @property
    def run(self) -> Callable[..., Any]:
        """The forward that was shadowed."""
        own: Callable[..., Any] = functools.partial(type(self.module).forward, self.module)
        return own if self.shadowed is None else self.shadowed

    @property
    def padding_share(self) -> float:
        """Pads per slot over all packed forwards so far."""
        return 1 - self.tokens / self.slots if self.slots else 0.0

    @outside_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run packed rows document by document, and anything else as before."""
        packed = packed_forward()
        if packed is None:
            self._refuse_lost_boundaries()
            with _state_kept(self.tables):
                return self.run(*args, **kwargs)
        given = dict(enumerate(args)) | kwargs
        device = _device_of(given)
        layout = layout_of(packed, device, exact=self.exact)
        self.tokens += len(layout.back)
        self.slots += sum(group.stream.numel() for group in layout.groups)
        results = []
        with reopened(None):
            for group in layout.groups:
                laid = self._laid_out(given, packed, group)
                token = UNPACKED.set(group)
                try:
                    with _state_kept(self.tables):
                        results.append(self.run(*[laid.pop(i) for i in range(len(args))], **laid))
                finally:
                    UNPACKED.reset(token)
        return self._laid_back(results, packed, layout)

    def _refuse_lost_boundaries(self) -> None:
        if torch._C._current_graph_task_id() != -1 and not _inside_a_forward():  # noqa: SLF001 - the only way to know that a backward pass runs this
            raise SealError(
                f"{self.name} ({type(self.module).__name__}) is run again in the backward pass without its boundaries, "
                "by a kind of checkpointing that is not transformers' own; expected "
                "model.gradient_checkpointing_enable()"
            )

    def _laid_out(self, given: dict[Any, Any], packed: PackedForward, group: Documents) -> dict[Any, Any]:
        floating = (x.dtype for x in tensors_in(given).values() if x.is_floating_point())
        wanted = next(floating, torch.get_default_dtype()) if self.original == "eager" else None

        def change(path: Path, tensor: torch.Tensor) -> Any:
            ticket = Ticket.decode(tensor)
            if ticket is not None:
                return _mask_of(ticket, group, self.masks.get(path, wanted))
            known = self.arguments.get(path)
            by_token = tensor.shape[:2] == (packed.num_rows, packed.num_slots)
            if known is None and by_token and (tensor.ndim == 2 or path == ("inputs_embeds",)):
                known = (1,)  # the door's mask of padding, embeddings as wide as the row is long: none is of pairs
            axes = token_axes(tensor, packed.num_slots, known)
            laid = lay_out(tensor, axes, packed, group)
            return _restarted(laid, axes[0], self.restarts[path]) if path in self.restarts else laid

        laid: dict[Any, Any] = mapped(given, change)
        return laid

    def _laid_back(self, results: list[Any], packed: PackedForward, layout: Layout) -> Any:
        by_path = [tensors_in(result) for result in results]

        def change(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
            parts = [found[path] for found in by_path]
            axes = self.results.get(path)
            if not axes and any(tensor is one for one in (*self.module.parameters(), *self.module.buffers())):
                return tensor  # handed through, for another module to add
            if axes is None and _are_features(parts, layout):
                axes = (1,)  # hidden states, which the trial does not ask for
            if axes is None or len(axes) != 1:
                return None  # attention weights, router logits: they are of the documents and have no place in a row
            return lay_back(parts, axes[0], packed, layout)

        return mapped(results[0], change)


@contextmanager
def _state_kept(tables: Sequence[nn.Module]) -> Iterator[None]:
    """What these modules keep of some documents is not there for the next, packed or alone.

    Rotary embeddings with dynamic scaling keep the frequencies of the longest document that they have seen.
    """
    before = [(dict(vars(table)), dict(table._buffers)) for table in tables]  # noqa: SLF001 - public names leave some out
    try:
        yield
    finally:
        for table, (attributes, buffers) in zip(tables, before, strict=True):
            vars(table).update(attributes)
            table._buffers.update(buffers)  # noqa: SLF001 - as above


def is_unpacked(module: nn.Module) -> bool:
    """Whether this very module runs document by document."""
    return isinstance(vars(module).get("forward"), Unpacked)


def _are_features(parts: Sequence[torch.Tensor], layout: Layout) -> bool:
    """Whether these are ``[rows, width, C]`` of each group, of one ``C``."""
    return len({part.shape[2:] for part in parts}) == 1 and all(
        part.ndim == 3 and part.shape[:2] == (group.rows, group.width)
        for part, group in zip(parts, layout.groups, strict=True)
    )


def remove_all(installed: dict[int, Unpacked]) -> None:
    """Give every module back as it was."""
    while installed:
        installed.popitem()[1].remove()


def _restarted(positions: torch.Tensor, axis: int, start: int) -> torch.Tensor:
    """Positions that count from ``start`` in each document."""
    return positions - positions.narrow(axis, 0, 1) + start


def _inside_a_forward() -> bool:
    from hermetic.seal.channel import open_forward

    return open_forward() is not None


def _device_of(given: dict[Any, Any]) -> torch.device:
    found = tensors_in(given)
    return next((x.device for x in found.values() if Ticket.decode(x) is None), torch.device("cpu"))


def _mask_of(ticket: Ticket, group: Documents, dtype: torch.dtype | None) -> torch.Tensor | None:
    """The mask that the module would get for this group of documents: boolean, added, or none if it is causal."""
    if dtype is None and ticket.causal and ticket.window is None and ticket.chunk is None:
        return None
    place = torch.arange(group.width, device=group.stream.device)
    seen = allowed(place[:, None], place[None, :], causal=ticket.causal, window=ticket.window, chunk=ticket.chunk)
    seen = seen.expand(group.rows, 1, group.width, group.width)
    if group.real is not None and not ticket.causal:
        seen = seen & group.real[:, None, None, :]
    if dtype is None or not dtype.is_floating_point:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)

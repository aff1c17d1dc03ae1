"""The door of a sealed model: a forward pre-hook that reads boundaries, and the hook that closes it.

Both sit on every transformers model inside the sealed one, since a caller may enter at any of them; the
outermost one acts. They hold no reference to the model, so copying or pickling a sealed model works.
"""

import inspect
from typing import Any

import torch
from torch import nn

from hermetic.batch import Boundaries
from hermetic.batch.dialects import flash_kwargs
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import SealError
from hermetic.seal.channel import PackedForward, enter, leave, open_forward, outside_graphs
from hermetic.seal.checkpointing import carry_boundaries
from hermetic.seal.inputs import (
    Numbering,
    PackedRows,
    has_explicit_boundaries,
    packed_rows_from_call,
    positions_for,
)
from hermetic.seal.interface import entry_name, register

_CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")
"""What transformers calls a cache, newest name first; RWKV calls it ``state``, XLNet ``mems``."""

_FLASH_ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


Settings = tuple[tuple[tuple[str, ...], str | None], ...]
"""The path of a configuration inside a model's, and its attention implementation before sealing."""


def settings_of(config: Any, path: tuple[str, ...] = ()) -> Settings:
    """The attention implementation of a configuration and of those nested in it, outermost first."""
    own = ((path, config._attn_implementation),)  # noqa: SLF001 - transformers' only name for this setting
    nested = ((name, getattr(config, name, None)) for name in config.sub_configs)
    return sum((settings_of(sub, (*path, name)) for name, sub in nested if sub is not None), own)


def _nested(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = getattr(config, name)
    return config


def original_of(implementation: str | None) -> str:
    """What an attention implementation stands for; transformers runs ``None`` as eager."""
    return implementation or "eager"


class Door:
    """Reads where documents start from the call, and opens the packed forward."""

    def __init__(self, backend: str, settings: Settings) -> None:
        """Stand in for the attention implementations in ``settings``; the first is the module's own."""
        self.backend = backend
        self.settings = settings
        self.routes = True
        """Attention goes through hermetic's entry. Otherwise the model keeps its own, which it looks up by name."""
        self.numbering = Numbering()
        """How the model numbers the tokens of a document when it is left to itself."""
        self.masks = True
        """The model gets a mask of ones, which says that there is nothing to guess. Otherwise it makes its own."""
        self.native = False
        """The model's own kernels get the boundaries, as ``seq_idx`` and ``cu_seq_lens``."""
        self.carries = False
        """Modules are unpacked, so layers that checkpointing runs again need the boundaries carried to them."""

    @property
    def name(self) -> str | None:
        """The attention implementation that the module's configuration has while it is sealed."""
        own = self.settings[0][1]
        return entry_name(self.backend, original_of(own)) if self.routes else own

    def install(self, config: Any) -> None:
        """Set hermetic's entries in a configuration and in those nested in it, outermost first."""
        for path, original in self.settings:
            _nested(config, path)._attn_implementation = register(self.backend, original_of(original))  # noqa: SLF001 - transformers' only name for this setting

    def leave_attention(self, config: Any) -> None:
        """Give the configuration its attention back and go on reading boundaries."""
        self.restore(config)
        self.routes = False

    def restore(self, config: Any) -> None:
        """Set back what ``install`` replaced."""
        for path, original in self.settings:
            _nested(config, path)._attn_implementation = original  # noqa: SLF001 - as above

    def __setstate__(self, state: dict[str, Any]) -> None:
        # a sealed model that arrives in another process brings its interface entries along
        self.__dict__.update(state)
        for _, original in self.settings:
            register(self.backend, original_of(original))

    @outside_graphs
    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Turn the caller's arguments into those of a packed forward, or leave them as they are."""
        outer = open_forward()
        if outer is not None and outer.holds(module):
            return None
        self._refuse_replaced(module)
        if self.carries:
            carry_boundaries(module)  # of rows of one document too: what is run again has to know that they are
        signature = inspect.signature(module.forward)
        call = _named_arguments(signature, args, kwargs)
        tokens = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
        if tokens is None:
            return None
        rows = _rows_of_call(call, tokens)
        argument = tokens.view_as(tokens)  # of this call alone, so that an interrupted one can be told
        if rows is None:
            enter(module, None, argument)
            return _replaced(args, kwargs, tokens, argument)
        sealed = _sealed_arguments(signature, _replaced((), call, tokens, argument)[1], rows, self.numbering)
        if not self.masks:
            sealed.pop("attention_mask", None)
        if self.native:
            sealed |= accepted(signature, _native_arguments(rows, tokens.device))
        packed = PackedForward(lengths=rows.lengths, num_rows=rows.num_rows, num_slots=rows.num_slots)
        enter(module, packed, argument)
        return (), sealed

    def _refuse_replaced(self, module: nn.Module) -> None:
        config: Any = module.config
        found = config._attn_implementation  # noqa: SLF001 - transformers' only name for this setting
        if found != self.name:
            raise SealError(
                f"the attention implementation of {type(module).__name__} was {self.name!r} when it was sealed and "
                f"is {found!r} now, so packed documents would reach each other; call hermetic.seal(model) again"
            )


class Close:
    """Ends the packed forward of its own module, also when the model raised."""

    @outside_graphs
    def __call__(self, module: nn.Module, _args: Any, _output: Any) -> None:
        """Forget the boundaries; the attention layers hold what backward needs."""
        leave(module)


def _named_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, positional ones included."""
    return dict(signature.bind_partial(*args).arguments) | kwargs


def _replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], old: torch.Tensor, new: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with one tensor in place of another."""
    named = {name: new if value is old else value for name, value in kwargs.items()}
    return tuple(new if value is old else value for value in args), named


def _rows_of_call(call: dict[str, Any], tokens: torch.Tensor) -> PackedRows | None:
    shape = (int(tokens.shape[0]), int(tokens.shape[1]))
    cached = any(call.get(name) is not None for name in _CACHES)
    mask = call.get("attention_mask")
    if cached and isinstance(mask, torch.Tensor) and mask.ndim == 2:
        call = call | {"attention_mask": mask[:, -shape[1] :]}  # it covers the cached tokens too
    elif cached and mask is not None and not has_explicit_boundaries(call):
        return None  # generation with a mask that was made for a static cache
    rows = packed_rows_from_call(call, shape)
    if rows is not None and cached:
        raise SealError(
            "packed rows came with a cache (past_key_values), which has no boundaries; expected one or the other. "
            "Leave the cache out (prefix tuning passes one: it cannot be packed)"
        )
    return rows


def _sealed_arguments(
    signature: inspect.Signature, call: dict[str, Any], rows: PackedRows, numbering: Numbering
) -> dict[str, Any]:
    tokens = call.get("input_ids")
    device = (call["inputs_embeds"] if tokens is None else tokens).device
    explicit = has_explicit_boundaries(call)
    # Their message has arrived; a layer of the model's own that is handed them asks for kernels that may not be there.
    sealed = {name: value for name, value in call.items() if name not in {"document_ids", "seq_idx", *_FLASH_ARGUMENTS}}
    positions = positions_for(rows, call.get("position_ids"), explicit=explicit, numbering=numbering)
    if positions is not None:
        # Whoever numbers by token runs unpacked, and numbers each document by itself.
        sealed["position_ids"] = None if numbering.by_token else positions.to(device)
    # An all-ones mask keeps transformers from guessing boundaries of its own; padding is among the runs.
    sealed["attention_mask"] = torch.ones(rows.num_rows, rows.num_slots, dtype=torch.long, device=device)
    sealed["use_cache"] = False
    starts = (rows.position_ids() == 0).to(device)
    for name, seams in (("labels", starts), ("shift_labels", starts.roll(-1, dims=1))):
        if call.get(name) is not None:
            sealed[name] = _labels_without_seams(name, call[name], seams)
    return accepted(signature, sealed)


def _native_arguments(rows: PackedRows, device: torch.device) -> dict[str, Any]:
    """The boundaries in the words of transformers' recurrent layers and their kernels, which take one row.

    Raises:
        SealError: there are several rows.
    """
    if rows.num_rows > 1:
        raise SealError(
            f"this model keeps documents apart by kernels of its own, which take one row, and got {rows.num_rows}; "
            "lay the rows end to end, as hermetic.collate does"
        )
    boundaries = Boundaries(document_lengths=rows.lengths)
    edges = flash_kwargs(boundaries, num_slots=boundaries.num_tokens)
    seq_idx = boundaries.document_ids[None].to(device)
    return {
        "seq_idx": seq_idx,
        "cu_seq_lens_q": edges["cu_seq_lens_q"].to(device),
        "cu_seq_lens_k": edges["cu_seq_lens_k"].to(device),
        "max_length_q": edges["max_length_q"],
        "max_length_k": edges["max_length_k"],
    }


def _labels_without_seams(name: str, labels: torch.Tensor, seams: torch.Tensor) -> torch.Tensor:
    """No token is trained to predict the first token of another document; ``seams`` is ``[B, S]``."""
    if labels.numel() != seams.numel():
        raise SealError(
            f"{name} has shape {tuple(labels.shape)}; expected one label for each of "
            f"{seams.shape[0]} x {seams.shape[1]} tokens, so that those at the seams can be masked"
        )
    return labels.masked_fill(seams.to(labels.device).view(labels.shape), IGNORE_INDEX)


def accepted(signature: inspect.Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """Without the arguments that this module has no place for and that the seal answers for."""
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return arguments
    optional = {"position_ids", "attention_mask", "use_cache", "seq_idx", *_FLASH_ARGUMENTS}
    return {name: value for name, value in arguments.items() if name not in optional or name in signature.parameters}

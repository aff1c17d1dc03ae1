"""hermetic's entries in transformers' attention and mask interfaces: public seams, no patching.

An entry is named after the backend and the implementation that it stands in for. Packed rows go to
``hermetic.packed_attention``; everything else (one document per row, generation with a cache) goes to the
implementation that the model had before, so that a sealed model generates exactly as it did.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError, SealError
from hermetic.seal.channel import WITNESS, PackedForward, Ticket, outside_graphs, packed_forward
from hermetic.seal.pattern import recognise

_PREFIX = "hermetic_"

_WITHOUT_INDICES = {"eager", "sdpa"}
"""Sparse models make a mask of their choice of keys for these, and look for them by name."""


def entry_name(backend: str, original: str) -> str:
    """The interface name of ``backend`` standing in for ``original``.

    "flash" is respelled: transformers takes any name with that word for a flash kernel.
    """
    return f"{_PREFIX}{backend}_over_{original.replace('flash', 'fa')}"


def register(backend: str, original: str) -> str:
    """Register the attention and mask functions of ``backend`` over ``original``; returns their name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = entry_name(backend, original)
    AttentionInterface.register(name, _attention_function(backend, original))
    AttentionMaskInterface.register(name, _mask_function(original))
    return name


def _mask_function(original: str) -> Callable[..., Any]:
    @outside_graphs
    def mask(**kwargs: Any) -> Any:
        packed = packed_forward()
        if packed is None:
            from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

            return ALL_MASK_ATTENTION_FUNCTIONS[original](**kwargs)
        return _ticket(packed, kwargs).encode()

    return mask


def _ticket(packed: PackedForward, request: dict[str, Any]) -> Ticket:
    """Answer transformers' request for a mask with the boundaries and the layer's pattern."""
    asked = (request["batch_size"], request["q_length"], request["kv_length"])
    expected = (packed.num_rows, packed.num_slots, packed.num_slots)
    if asked != expected:
        raise SealError(
            f"the model asked for a mask over (rows, queries, keys) {asked} in a batch of {expected}; "
            "packed rows cannot be combined with tokens that the batch does not hold (a cache, a prefix, another "
            "stream). Call the model without them"
        )
    if request.get("use_vmap"):
        raise SealError(
            "the model lays a mask of its own over the usual one, and hermetic cannot tell which tokens of a "
            "document it joins. Train this model on padded rows"
        )
    pattern = recognise(
        request["mask_function"],
        local_size=request.get("local_size"),
        longest=max(packed.lengths),
        device=torch.device(request["device"]),
    )
    return Ticket(lengths=packed.lengths, causal=pattern.causal, window=pattern.window, chunk=pattern.chunk)


def _attention_function(backend: str, original: str) -> Callable[..., Any]:
    @outside_graphs
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ticket = Ticket.decode(attention_mask)
        if kwargs.get("indices") is not None and (ticket is not None or original in _WITHOUT_INDICES):
            raise SealError(
                f"{_describe(module)} chooses the keys of each query itself and hands their indices to attention, "
                f"which neither packed attention nor {original} takes; train this model on padded rows"
            )
        if ticket is None:
            _refuse_unticketed(module)
            forward = _original_attention(module, original)
            return forward(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
        _visit(module, ticket)
        return _packed(backend, ticket, module, (query, key, value), kwargs), None

    return attention


def _refuse_unticketed(module: torch.nn.Module) -> None:
    if packed_forward() is not None:
        raise SealError(
            f"{_describe(module)} got packed rows without their boundaries: this model does not route the mask of "
            "this layer through transformers' mask interface. Train this model on padded rows"
        )


def _original_attention(module: torch.nn.Module, original: str) -> Callable[..., Any]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if original != "eager":
        return ALL_ATTENTION_FUNCTIONS[original]  # type: ignore[no-any-return]
    for ancestor in type(module).__mro__:  # a model's eager attention lives beside its attention class
        eager = getattr(sys.modules[ancestor.__module__], "eager_attention_forward", None)
        if eager is not None:
            return eager  # type: ignore[no-any-return]
    raise SealError(
        f"{_describe(module)} has no eager_attention_forward beside its class; "
        "load the model with attn_implementation='sdpa'"
    )


def _visit(module: torch.nn.Module, ticket: Ticket) -> None:
    witness = WITNESS.get()
    if witness is not None:
        witness[id(module)] = ticket


def _packed(
    backend: str,
    ticket: Ticket,
    module: torch.nn.Module,
    queries_keys_values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: dict[str, Any],
) -> torch.Tensor:
    """``[B, H, S, K]`` in, ``[B, S, H, V]`` out, as transformers' attention functions have it."""
    if options.get("position_bias") is not None:
        raise SealError(
            f"{_describe(module)} adds a position bias to its scores, which packed attention does not take; "
            "train this model on padded rows"
        )
    rows, _, slots, _ = queries_keys_values[0].shape
    query, key, value = (x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in queries_keys_values)
    try:
        out = packed_attention(
            query,
            key,
            value,
            Boundaries(document_lengths=ticket.lengths),
            backend=backend,
            causal=ticket.causal,
            window=ticket.window,
            chunk=ticket.chunk,
            scale=options.get("scaling"),
            softcap=options.get("softcap"),
            sinks=options.get("s_aux"),
            dropout=options.get("dropout", 0.0),
        )
    except AttentionError as error:
        raise SealError(f"{_describe(module)} cannot run packed: {error}") from error
    return out.view(rows, slots, *out.shape[1:])


def _describe(module: torch.nn.Module) -> str:
    layer = getattr(module, "layer_idx", None)
    return f"{type(module).__name__}" + ("" if layer is None else f" of layer {layer}")

"""Megatron-core's ``PackedSeqParams`` (the ``thd`` format) for context parallelism, made and read.

Algorithm: a stream is split over C ranks by cutting each document into 2 * C equal pieces, so each document is
padded to a multiple of that. Two sets of edges describe the result and are never mixed: ``cu_seqlens_q`` and
``_kv`` count real tokens, ``cu_seqlens_q_padded`` and ``_kv_padded`` count slots of the padded stream.
``padded_index`` says where each token of the flat stream lies in the padded one. Megatron is not imported; its
class is an argument. Guarantee: every slot belongs to one padded document or to the tail, which is one more.
Empty documents have no edge and are dropped. Price: O(documents), O(tokens) for the index.
"""

from dataclasses import fields, is_dataclass
from math import lcm
from typing import Any

import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import (
    all_lengths,
    check_equal,
    check_longest,
    segments_from_edges,
    without_tail,
)
from hermetic.errors import BatchError


def packed_seq_kwargs(
    boundaries: Boundaries,
    params_class: type,
    *,
    context_parallel: int = 1,
    pad_each_to: int = 1,
    num_slots: int | None = None,
) -> dict[str, Any]:
    """Keyword arguments of Megatron-core's ``PackedSeqParams``.

    Args:
        boundaries: The documents.
        params_class: ``PackedSeqParams`` itself; its fields differ between releases.
        context_parallel: Ranks C that share each document. With more than one, each document is padded to a
            multiple of 2 * C.
        pad_each_to: Each document is padded to a multiple of this as well. With sequence parallelism over S
            ranks, give 2 * C * S.
        num_slots: Slots of the padded stream, the tail included. Default: no tail.

    Returns:
        ``qkv_format="thd"``; real and padded edges of queries and keys, int32 on the CPU; the longest padded
        segment as a Python int, twice; and, if the class has such a field, ``total_tokens``, the slots of the
        padded stream.

    Raises:
        BatchError: If the class lacks a field, a multiple is below 1, or ``num_slots`` does not hold the
            padded documents and a tail of the same multiple.

    Example:
        >>> from dataclasses import make_dataclass
        >>> names = ["qkv_format", "max_seqlen_q", "max_seqlen_kv", "cu_seqlens_q", "cu_seqlens_kv"]
        >>> stand_in = make_dataclass("Params", [*names, "cu_seqlens_q_padded", "cu_seqlens_kv_padded"])
        >>> kwargs = packed_seq_kwargs(Boundaries.from_lengths([3, 5]), stand_in, context_parallel=2)
        >>> kwargs["cu_seqlens_q"].tolist(), kwargs["cu_seqlens_q_padded"].tolist(), kwargs["max_seqlen_q"]
        ([0, 3, 8], [0, 4, 12], 8)
    """
    padded = _padded_boundaries(boundaries, context_parallel, pad_each_to)
    slots = _padded_slots(padded, num_slots, _multiple(context_parallel, pad_each_to))
    tail = slots - padded.num_tokens
    edges = views.cu_seqlens_from_lengths(all_lengths(boundaries, boundaries.num_tokens + tail))
    padded_lengths = all_lengths(padded, slots)
    padded_edges = views.cu_seqlens_from_lengths(padded_lengths)
    longest = max(padded_lengths, default=0)
    kwargs: dict[str, Any] = {
        "qkv_format": "thd",
        "cu_seqlens_q": edges,
        "cu_seqlens_kv": edges,
        "cu_seqlens_q_padded": padded_edges,
        "cu_seqlens_kv_padded": padded_edges,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
    return kwargs | ({"total_tokens": slots} if "total_tokens" in _field_names(params_class, kwargs) else {})


def padded_index(boundaries: Boundaries, *, context_parallel: int = 1, pad_each_to: int = 1) -> torch.Tensor:
    """Where each token of the flat stream lies in the padded one.

    ``padded[index] = flat`` lays tokens out, ``flat = padded[index]`` takes them back.

    Args:
        boundaries: The documents.
        context_parallel: As in ``packed_seq_kwargs``.
        pad_each_to: As in ``packed_seq_kwargs``.

    Returns:
        [T] int64 on the CPU, rising.

    Raises:
        BatchError: If a multiple is below 1.

    Example:
        >>> padded_index(Boundaries.from_lengths([3, 5]), context_parallel=2)
        tensor([0, 1, 2, 4, 5, 6, 7, 8])
    """
    padded = _padded_boundaries(boundaries, context_parallel, pad_each_to)
    starts = padded.lengths.cumsum(0) - padded.lengths
    return boundaries.position_ids + starts.repeat_interleave(boundaries.lengths)


def boundaries_from_packed_seq_params(params: object, *, num_tokens: int | None = None) -> Boundaries:
    """Read the documents from Megatron-core's ``PackedSeqParams``.

    Args:
        params: An object with its fields; the padded edges may be None, which means that nothing is padded.
        num_tokens: Real tokens; the one segment beyond them is the tail. Default: every segment is a
            document.

    Returns:
        The documents in real tokens, without what pads them. A repeated edge is an empty one.

    Raises:
        BatchError: If the format is not ``thd``, edges are missing or malformed, those of queries and keys
            differ, a document is longer than its padded room, a longest length or ``total_tokens`` is too
            small, or the tail is not one segment.

    Example:
        >>> from types import SimpleNamespace
        >>> params = SimpleNamespace(
        ...     qkv_format="thd", max_seqlen_q=8, max_seqlen_kv=8, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None,
        ...     cu_seqlens_q=torch.tensor([0, 3, 8], dtype=torch.int32),
        ...     cu_seqlens_kv=torch.tensor([0, 3, 8], dtype=torch.int32),
        ... )
        >>> boundaries_from_packed_seq_params(params)
        Boundaries(document_lengths=(3, 5))
    """
    qkv_format = getattr(params, "qkv_format", None)
    if qkv_format != "thd":
        raise BatchError(
            f"qkv_format is {qkv_format!r}, expected 'thd', the only format with documents in one stream; in another "
            f"each row is one document"
        )
    real = _self_attention_segments(params, "cu_seqlens_q", "cu_seqlens_kv")
    padded_names = ("cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    if any(getattr(params, name, None) is not None for name in padded_names):
        padded = _self_attention_segments(params, *padded_names)
        _check_room(real, padded)
    else:
        padded = real
    for name in ("max_seqlen_q", "max_seqlen_kv"):
        check_longest(getattr(params, name, None), real.max_seqlen, name=name)
    _check_total(getattr(params, "total_tokens", None), padded.num_tokens)
    return without_tail(real, num_tokens, name="cu_seqlens_q")


def _multiple(context_parallel: int, pad_each_to: int) -> int:
    for name, value in (("context_parallel", context_parallel), ("pad_each_to", pad_each_to)):
        if value < 1:
            raise BatchError(f"{name} is {value}, expected 1 or more; 1 asks for no padding")
    return lcm(2 * context_parallel if context_parallel > 1 else 1, pad_each_to)


def _padded_boundaries(boundaries: Boundaries, context_parallel: int, pad_each_to: int) -> Boundaries:
    multiple = _multiple(context_parallel, pad_each_to)
    return Boundaries(
        document_lengths=tuple(-(-length // multiple) * multiple for length in boundaries.document_lengths)
    )


def _padded_slots(padded: Boundaries, num_slots: int | None, multiple: int) -> int:
    if num_slots is None:
        return padded.num_tokens
    if num_slots < padded.num_tokens or num_slots % multiple:
        raise BatchError(
            f"num_slots is {num_slots}, expected a multiple of {multiple} from {padded.num_tokens} (the padded "
            f"documents), for ranks share the tail too; round it up"
        )
    return num_slots


def _field_names(params_class: type, needed: dict[str, Any]) -> set[str]:
    names = {field.name for field in fields(params_class)} if is_dataclass(params_class) else set()
    missing = [name for name in needed if name not in names]
    if missing:
        raise BatchError(
            f"params_class {params_class.__name__} has no field {', '.join(missing)}, expected Megatron-core's "
            f"PackedSeqParams; import it from megatron.core.packed_seq_params"
        )
    return names


def _self_attention_segments(params: object, queries: str, keys: str) -> Boundaries:
    segments, of_keys = (segments_from_edges(getattr(params, name, None), name=name) for name in (queries, keys))
    check_equal(segments, of_keys, names=(queries, keys))
    return segments


def _check_room(real: Boundaries, padded: Boundaries) -> None:
    """Real and padded edges are two descriptions of the same documents."""
    if real.num_documents != padded.num_documents:
        raise BatchError(
            f"cu_seqlens_q has {real.num_documents} documents, cu_seqlens_q_padded {padded.num_documents}; expected "
            f"the same documents, once in real tokens and once in slots"
        )
    for index, (length, room) in enumerate(zip(real.document_lengths, padded.document_lengths, strict=True)):
        if length > room:
            raise BatchError(
                f"document {index} has {length} tokens and {room} padded slots, expected room for all of them; were "
                f"cu_seqlens_q and cu_seqlens_q_padded exchanged?"
            )


def _check_total(total: object, slots: int) -> None:
    if total is not None and (type(total) is not int or total < slots):
        raise BatchError(
            f"total_tokens is {total!r}, expected None or {slots} or more, the slots of the padded stream; it counts "
            f"padding"
        )

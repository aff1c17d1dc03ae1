"""Where a leak is that no gradient shows: two runs that differ in one document, compared call by call.

Algorithm: a document is replaced, and both runs are recorded. The place is the first call of a module that is given
the same at every token of all other documents, and gives something else. The same is meant up to rounding: experts
move last bits of everybody when tokens are routed otherwise, for their matrix products have other shapes. Only where
nothing moves by more are bits compared.
Guarantee: a module that moves others by rounding is never named while one moves them by more.
Price: the activations of two forwards over at most ``MAX_TOKENS`` tokens, and two more forwards where bits decide.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import HermeticError
from hermetic.probe.instruments import with_documents_replaced
from hermetic.probe.subject import Subject
from hermetic.seal.aligned import tensors_in
from hermetic.seal.measure import first_leaking_module
from hermetic.seal.replay import Call, axes_of, recorded

MAX_TOKENS = 512
"""Calls are recorded over at most this many tokens, so that their activations fit beside any model."""


def place_by_comparison(subject: Subject, batch: PackedBatch, source: int) -> tuple[nn.Module, nn.Module] | None:
    """The outermost module, and the one in it that first carries document ``source`` to others.

    ``None`` when every module that moves was given something else.
    """
    few, document = _few(batch, source)
    replaced, kept = _without(few, document)
    for root in subject.modules:
        with torch.no_grad():
            before = recorded(root, lambda: subject.logits(few)).calls
            after = recorded(root, lambda: subject.logits(replaced)).calls
        for one, other in _pairs(before, after):
            if _differ(one.output, other.output, kept) and not _differ(one.arguments, other.arguments, kept):
                return root, one.module
    return _by_bits(subject, batch, source)


def _few(batch: PackedBatch, source: int) -> tuple[PackedBatch, int]:
    """The batch, or of a long one the document and its neighbour around their seam; and the document's number there."""
    if batch.boundaries.num_tokens <= MAX_TOKENS:
        return batch, source
    ids, half = batch.unpack(batch.input_ids), MAX_TOKENS // 2
    present = [document for document, part in enumerate(ids) if part.numel()]
    place = min(present.index(source), len(present) - 2)
    first, second = present[place : place + 2]
    return collate([{"input_ids": ids[first][-half:]}, {"input_ids": ids[second][:half]}]), int(source == second)


def _without(batch: PackedBatch, source: int) -> tuple[PackedBatch, torch.Tensor]:
    """The batch with a document replaced, and ``[T]`` booleans: the tokens of all others."""
    tokens = batch.boundaries.num_tokens
    return with_documents_replaced(batch, [source]), batch.boundaries.document_ids[:tokens] != source


def _pairs(before: list[Call], after: list[Call]) -> Iterator[tuple[Call, Call]]:
    """The calls of one run in order, each with that of the same module in the other: the n-th with the n-th."""
    counterparts: dict[int, list[Call]] = defaultdict(list)
    for call in reversed(after):
        counterparts[id(call.module)].append(call)
    for call in before:
        if counterparts[id(call.module)]:
            yield call, counterparts[id(call.module)].pop()


def _differ(one: Any, other: Any, kept: torch.Tensor) -> bool:
    """Whether tensors along the tokens differ by more than rounding at those that are kept."""
    try:
        axes = axes_of(one, len(kept))
    except HermeticError:  # sizes alone do not tell which axes are the tokens'
        return False
    counterparts = tensors_in(other)
    for path, tensor in tensors_in(one).items():
        counterpart = counterparts.get(path)
        if tensor.is_floating_point() and len(axes[path]) == 1 and counterpart is not None:
            rows, others = (x.movedim(axes[path][0], 0)[kept.to(x.device)] for x in (tensor, counterpart))
            size = float(rows.abs().max()) * torch.finfo(rows.dtype).eps ** 0.5
            if rows.shape != others.shape or float((rows - others).abs().max()) > size:
                return True
    return False


def _by_bits(subject: Subject, batch: PackedBatch, source: int) -> tuple[nn.Module, nn.Module] | None:
    replaced = with_documents_replaced(batch, [source])

    def run(ids: torch.Tensor) -> torch.Tensor:
        same = torch.equal(ids.cpu(), batch.input_ids.cpu())
        return subject.logits(batch if same else replaced)

    for root in subject.modules:
        found = first_leaking_module(root, run, batch.input_ids, replaced.input_ids)
        if found is not None:
            return root, root.get_submodule(found[0])
    return None

"""The instruments that look at content: swap, gradient, solo and causality. Each is blind where another sees.

=========  ==============================================================  ==============================
swap       replace documents by others of their lengths: nobody else may    length coupling; leaks below
           change by a bit                                                  rounding
gradient   logits of one document at the embeddings of another: exactly 0   discrete and length paths;
                                                                            isolated but wrong gradients
solo       packed against alone, logits and parameter gradients, judged     leaks below the noise
           by a noise floor measured in place
causality  change the last token of every document: nothing earlier in a    what an earlier token alone
           document may change by a bit                                     hands back
=========  ==============================================================  ==============================

Up to four documents, each is measured by itself. Of more, swap takes groups that tell any two documents apart
(``covering_groups``): a group that reaches nobody outside clears all of its pairs at once; and gradient takes the
even and the odd ones.
Price beside one forward that they share: a forward for each of G groups (swap: 8 for 70 documents); a forward and
three backwards to the embeddings (gradient); a forward and backward over the batch, a forward over each document,
and some passes over four documents (solo); one forward (causality).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch documents it under this name

from hermetic.batch import PackedBatch, collate
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import ProbeError
from hermetic.loss import packed_loss
from hermetic.probe.subject import Subject
from hermetic.seal.measure import (
    UNMEASURED_ROUNDINGS,
    GradientInfluence,
    by_pairs,
    covering_groups,
    frozen,
    gradient_influence,
    largest_difference,
    noise_floor,
    perturbed_by_roundings,
)

MAX_COMPARED_PARAMETERS = 2**25
"""Parameter gradients are compared on at most this many numbers, smallest tensors first, to bound memory."""


def swap(subject: Subject, batch: PackedBatch, *, singly: bool = False) -> torch.Tensor:
    """``[D, D]`` float64: how far document i's logits move when document j is replaced by another.

    The shapes stay the same, so in a sealed model every other document is bit-identical and the entry is 0.0.
    The diagonal is 0.0 by convention: a document may move itself. Of more than four documents, groups are replaced
    together: a 0.0 is exact, and any other entry is what j moves together with its group, unless ``singly``.

    Raises:
        ProbeError: the batch has a single token id, so no document can be replaced; or replacing documents moves
            nothing at all, not even themselves.
    """
    groups = _groups(batch, singly=singly)
    lengths = list(batch.boundaries.document_lengths)
    before = subject.packed(batch)
    with torch.no_grad():
        moved = [
            _differences(before, subject.logits(with_documents_replaced(batch, group)).split(lengths))
            for group in groups
        ]
    influence = by_pairs(groups, moved).T
    if not influence.any():
        raise ProbeError(
            "the swap instrument replaced each document and no logit moved, not even its own, so zeros between "
            "documents would say nothing; expected logits that depend on the tokens"
        )
    return influence.fill_diagonal_(0.0)


def _groups(batch: PackedBatch, *, singly: bool) -> list[list[int]]:
    count = batch.boundaries.num_documents
    return [[document] for document in range(count)] if singly else covering_groups(count)


def _differences(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> torch.Tensor:
    """``[D]`` float64."""
    return torch.tensor([largest_difference(a, b) for a, b in zip(before, after, strict=True)], dtype=torch.float64)


def causality(subject: Subject, batch: PackedBatch, *, singly: bool = False) -> torch.Tensor:
    """``[D]`` float64: how far a document's logits before its last token move when that token changes.

    All last tokens change at once, so where documents reach each other that shows here too, unless ``singly``.

    Raises:
        ProbeError: no document has two tokens, all tokens are one id, or the change moves nothing at all.
    """
    lengths = list(batch.boundaries.document_lengths)
    ends = torch.tensor(lengths).cumsum(0) - 1
    chosen = [document for document, length in enumerate(lengths) if length > 1]
    if not chosen:
        raise ProbeError("the causality instrument found no document of two tokens, so there is no later token to see")
    moved = torch.zeros(len(lengths), dtype=torch.float64)
    with torch.no_grad():
        before = torch.cat(subject.packed(batch))
        own = 0.0
        for group in [[document] for document in chosen] if singly else [chosen]:
            after = subject.logits(_with_other_tokens(batch, ends[group]))
            own = max(own, largest_difference(before[ends[group]], after[ends[group]]))
            earlier = zip(before.split(lengths), after.split(lengths), strict=True)
            changes = [largest_difference(a[:-1], b[:-1]) for a, b in earlier]
            moved[group] = torch.tensor(changes, dtype=torch.float64)[group]
    if own == 0.0:
        raise ProbeError(
            "the causality instrument changed the last token of each document and its own logits did not move, so "
            "still logits before it would say nothing; expected logits that depend on the tokens"
        )
    return moved


def shapes_follow_content(subject: Subject, batch: PackedBatch) -> bool:
    """Whether swapping documents changes the shapes of tensor operations, as routing tokens to experts does.

    Then the last bits of other documents may move without their content being reached. Where all shapes stay,
    nothing but content can move a bit.
    """
    with torch.no_grad():
        subject.logits(batch)  # what is made once and kept, such as indices, is not counted against the first run
        shapes = [_operation_shapes(subject, batch)]
        shapes += [
            _operation_shapes(subject, with_documents_replaced(batch, group)) for group in _groups(batch, singly=False)
        ]
    return any(one != shapes[0] for one in shapes)


def _operation_shapes(subject: Subject, batch: PackedBatch) -> list[tuple[int, ...]]:
    recorder = _ShapeRecorder()
    with recorder:
        subject.logits(batch)
    return recorder.shapes


class _ShapeRecorder(TorchDispatchMode):
    """Keeps the shape of every tensor that an operation returns, and the group sizes of grouped products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.shapes += [tuple(one.shape) for one in results if isinstance(one, torch.Tensor)]
        if "grouped" in str(func):  # a product of many shapes in one call; where each begins is data
            edges = (one for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor))
            self.shapes += [tuple(one.tolist()) for one in edges if not one.is_floating_point()]
        return result


def with_documents_replaced(batch: PackedBatch, documents: Sequence[int]) -> PackedBatch:
    """The same batch with every token of some documents exchanged for another id of the batch."""
    parts = torch.arange(batch.boundaries.num_tokens).split(list(batch.boundaries.document_lengths))
    return _with_other_tokens(batch, torch.cat([parts[document] for document in documents]))


def _with_other_tokens(batch: PackedBatch, places: torch.Tensor) -> PackedBatch:
    known = batch.input_ids.unique()
    if known.numel() < 2:
        raise ProbeError(
            f"all tokens of the batch are {int(known[0])}, so no document can be replaced by another; "
            "expected at least two different token ids"
        )
    places = places.to(batch.input_ids.device)
    rank = torch.searchsorted(known, batch.input_ids[places])
    input_ids = batch.input_ids.index_copy(0, places, known[(rank + 1) % known.numel()])
    return replace(batch, input_ids=input_ids)


def gradient(subject: Subject, batch: PackedBatch, *, singly: bool = False) -> GradientInfluence:
    """Which document reaches which, and whether a token sees its own future, by gradients.

    Of more than four documents, the even ones are asked together about the odd ones and the odd ones about the even
    ones, unless ``singly``: all neighbours, and half of all pairs (``GradientInfluence.measured``).

    Raises:
        ProbeError: the subject embeds no tokens through ``torch.nn.Embedding``, or has no backward here.
    """
    generator = torch.Generator().manual_seed(subject.seed)
    ids = batch.input_ids[: batch.boundaries.num_tokens].to(subject.device)
    count = batch.boundaries.num_documents
    with frozen(subject.parameters()):
        return gradient_influence(
            lambda: subject.logits(batch),
            ids,
            batch.boundaries.document_lengths,
            generator=generator,
            groups=[[i] for i in range(count)] if singly or count <= 4 else [range(0, count, 2), range(1, count, 2)],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """Packed against alone."""

    logits: torch.Tensor
    """``[D]`` float64: largest logit difference of each document."""
    noise_floor: float
    """Largest logit difference that rounding alone may make."""
    gradients: float | None
    """Relative difference of the parameter gradients; ``None`` when none requires one or the logits are detached."""
    gradient_floor: float | None
    """The relative difference of parameter gradients that rounding alone may make."""


def solo(subject: Subject, batch: PackedBatch) -> Equivalence:
    """Compare each packed document with the same document alone, in logits and in parameter gradients.

    Of more than four documents, parameter gradients are compared for the first, the middle, the last and the
    longest one, packed among all others; the noise floors are measured on these four.
    """
    packed = subject.packed(batch)
    alone = subject.alone(batch)
    gradients, gradient_floor = _gradient_equivalence(subject, batch)
    return Equivalence(
        logits=_differences(packed, alone),
        noise_floor=floor_of(subject, batch),
        gradients=gradients,
        gradient_floor=gradient_floor,
    )


@torch.no_grad()
def floor_of(subject: Subject, batch: PackedBatch) -> float:
    """The noise floor of the logits of a batch, measured on a few of its documents."""
    few = collate([list(documents_of(batch))[document] for document in few_of(batch)])
    return noise_floor(lambda: subject.logits(few))


def few_of(batch: PackedBatch) -> list[int]:
    """All documents up to four; of more, the first, the middle, the last and the longest: ``[0, 2, 3, 5]``."""
    lengths = batch.boundaries.document_lengths
    present = [document for document, length in enumerate(lengths) if length]
    if len(present) <= 4:
        return present
    longest = max(present, key=lambda document: lengths[document])
    return sorted({present[0], present[len(present) // 2], present[-1], longest})


def among_equals(subject: Subject, batch: PackedBatch, document: int) -> float:
    """How far a document's logits move from alone to its place in a row of copies of itself: equal neighbours."""
    ids = batch.unpack(batch.input_ids)[document]
    length, count = ids.numel(), batch.boundaries.num_documents
    with torch.no_grad():
        copies = subject.logits(_row(ids.repeat(count), [length] * count)).split(length)
        return largest_difference(copies[document], subject.logits(_row(ids, [length])))


def _row(ids: torch.Tensor, lengths: Sequence[int]) -> PackedBatch:
    return collate([{"input_ids": part} for part in ids.split(list(lengths))])


def documents_of(batch: PackedBatch) -> Iterator[dict[str, torch.Tensor]]:
    """Each document as ``collate`` takes it."""
    for ids, labels in zip(batch.unpack(batch.input_ids), batch.unpack(batch.labels), strict=True):
        yield {"input_ids": ids, "labels": labels}


def _gradient_equivalence(subject: Subject, batch: PackedBatch) -> tuple[float | None, float | None]:
    """The relative difference between packed and alone, and the one that rounding alone may make."""
    compared = _compared_parameters(subject)
    few = few_of(batch)
    documents = [collate([document]) for i, document in enumerate(documents_of(batch)) if i in few]
    supervised = [document for document in documents if document.num_supervised_tokens]
    if not compared or not supervised:
        return None, None
    count = sum(document.num_supervised_tokens for document in supervised)
    packed = _gradients(subject, [_supervised_only(batch, few)], compared, count)
    if packed is None:
        return None, None
    alone = _gradients(subject, supervised, compared, count)
    with perturbed_by_roundings(subject.seed):
        perturbed = _gradients(subject, supervised, compared, count)
    assert alone is not None and perturbed is not None  # noqa: S101, PT018 - what has a backward packed has one alone
    size = float(torch.linalg.vector_norm(alone))
    if size == 0.0:
        return float(torch.linalg.vector_norm(packed)), 0.0
    rounding = max(torch.finfo(parameter.dtype).eps for parameter in compared)
    noise = float(torch.linalg.vector_norm(perturbed - alone)) / size
    floor = max(noise, rounding) if noise else UNMEASURED_ROUNDINGS * rounding
    return float(torch.linalg.vector_norm(packed - alone)) / size, floor


def _supervised_only(batch: PackedBatch, documents: Sequence[int]) -> PackedBatch:
    """The same batch with the labels of some documents only."""
    chosen = torch.isin(batch.boundaries.document_ids, torch.tensor(documents)).to(batch.labels.device)
    labels = torch.full_like(batch.labels, IGNORE_INDEX)
    labels[: len(chosen)] = batch.labels[: len(chosen)].masked_fill(~chosen, IGNORE_INDEX)
    return replace(batch, labels=labels)


def _compared_parameters(subject: Subject) -> list[nn.Parameter]:
    chosen, total = [], 0
    for parameter in sorted((p for p in subject.parameters() if p.requires_grad), key=torch.numel):
        total += parameter.numel()
        if total > MAX_COMPARED_PARAMETERS:
            break
        chosen.append(parameter)
    return chosen


def _gradients(
    subject: Subject, batches: Sequence[PackedBatch], compared: Sequence[nn.Parameter], count: int
) -> torch.Tensor | None:
    """Gradient of the summed token losses over ``count``, as one flat vector; ``None`` when logits are detached."""
    chosen = {id(p) for p in compared}
    others = [p for p in subject.parameters() if id(p) not in chosen]
    with _borrowed_gradients(compared), frozen(others), torch.enable_grad():
        for batch in batches:
            logits = subject.logits(batch)
            if not logits.requires_grad:
                return None
            loss = packed_loss(logits, _targets(batch, logits.shape[-1]).to(logits.device), denominator=count)
            loss.backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in compared]
        return torch.cat([part.detach().float().flatten() for part in parts])


def _targets(batch: PackedBatch, width: int) -> PackedBatch:
    """The batch with labels below ``width``: any loss will do, and a model without a head has narrow outputs."""
    labels = batch.labels
    return replace(batch, labels=labels.where(labels == IGNORE_INDEX, labels % width))


@contextmanager
def _borrowed_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Empty ``.grad`` for the duration; the caller's gradients are put back."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, own in zip(parameters, kept, strict=True):
            parameter.grad = own

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

Of a small batch (``sample.SMALL``) everything is measured on all of it: up to four documents each by itself, of more
swap takes groups that tell any two apart (``covering_groups``: a group that reaches nobody outside clears all of its
pairs at once) and gradient the even and the odd ones. Of a larger batch the even and the odd documents are asked over
all tokens, which is all neighbours and half of all pairs, and any two documents over the first tokens of each; noise
floors and parameter gradients are measured on four documents of 37 to 61 tokens. Whoever would be accused by such a
floor is judged by that of whole documents.
Not seen, so, in a larger batch: a document that reaches the next but one, below the noise, by what lies in its first
half beyond its first tokens alone; a backward that is wrong beyond 61 tokens of a document alone. Probe a small batch
or two documents for these.
Price of a larger batch, in forwards over it beside one that all share: 2 (swap); 1 and 3 backwards to the embeddings
(gradient); 1, a document at a time (solo); 1 (causality). And of short ones: a forward over 128 tokens for each group
(swap), a backward for each group (gradient), and 13 forwards' worth over 194 tokens (solo).
"""

from collections.abc import Callable, Iterator, Sequence
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
from hermetic.probe.sample import few_documents, few_of, is_small, miniature
from hermetic.probe.subject import Subject
from hermetic.probe.wrapped import local
from hermetic.seal.measure import (
    FLOOR_FACTOR,
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
from hermetic.seal.precision import gathering

MAX_COMPARED_PARAMETERS = 2**25
"""Parameter gradients are compared on at most this many numbers, smallest tensors first, to bound memory."""


def swap(subject: Subject, batch: PackedBatch, *, singly: bool = False) -> torch.Tensor:
    """``[D, D]`` float64: how far document i's logits move when document j is replaced by another.

    The shapes stay the same, so in a sealed model every other document is bit-identical and the entry is 0.0, which is
    exact. The diagonal is 0.0 by convention: a document may move itself. Where groups are replaced together, any other
    entry is what j moves together with its group, and of a batch that is not small the larger of two readings: over
    all tokens, and over the first ones of each document. ``singly`` takes each document by itself, over all tokens.

    Raises:
        ProbeError: the batch has a single token id, so no document can be replaced; or replacing documents moves
            nothing at all, not even themselves.
    """
    count = batch.boundaries.num_documents
    if singly or is_small(batch):
        influence = _swapped(subject, batch, _singles(count) if singly else covering_groups(count))
    else:
        influence = _swapped(subject, batch, _halves(count))
        unmeasured = influence.isinf()
        if bool(unmeasured.any()):
            within = _swapped(subject, miniature(batch), covering_groups(count))
            influence = torch.maximum(influence.masked_fill(unmeasured, 0.0), within)
    if not influence.any():
        raise ProbeError(
            "the swap instrument replaced each document and no logit moved, not even its own, so zeros between "
            "documents would say nothing; expected logits that depend on the tokens"
        )
    return influence.fill_diagonal_(0.0)


def _swapped(subject: Subject, batch: PackedBatch, groups: Sequence[Sequence[int]]) -> torch.Tensor:
    """``[D, D]``: how far document i moves when j is replaced with its group; infinite where no group tells."""
    lengths = list(batch.boundaries.document_lengths)
    before = subject.packed(batch)
    with torch.no_grad():
        moved = [
            _differences(before, subject.logits(with_documents_replaced(batch, group)).split(lengths))
            for group in groups
        ]
    return by_pairs(groups, moved).T


def _singles(count: int) -> list[list[int]]:
    return [[document] for document in range(count)]


def _halves(count: int) -> list[range]:
    """The even and the odd documents."""
    return [range(0, count, 2), range(1, count, 2)]


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
        before = subject.row(batch)
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
    nothing but content can move a bit. Of a batch that is not small, asked over its first tokens.
    """
    batch = batch if is_small(batch) else miniature(batch)
    groups = covering_groups(batch.boundaries.num_documents)
    with torch.no_grad():
        subject.logits(batch)  # what is made once and kept, such as indices, is not counted against the first run
        shapes = [_operation_shapes(subject, batch)]
        shapes += [_operation_shapes(subject, with_documents_replaced(batch, group)) for group in groups]
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


def gradient(
    subject: Subject,
    batch: PackedBatch,
    *,
    singly: bool = False,
    run: Callable[[], torch.Tensor] | None = None,
) -> GradientInfluence:
    """Which document reaches which, and whether a token sees its own future, by gradients.

    Of more than four documents, or of a batch that is not small, the even ones are asked together about the odd ones
    and the odd ones about the even ones: all neighbours, and half of all pairs (``GradientInfluence.measured``). In a
    batch that is not small the other pairs are asked over the first tokens of each document. ``singly`` takes each
    document by itself, over all tokens. ``run`` gives the logits of the batch, if not the subject.

    Raises:
        ProbeError: the subject embeds no tokens through ``torch.nn.Embedding``, or has no backward here.
    """
    count = batch.boundaries.num_documents
    each = singly or (count <= 4 and is_small(batch))
    found = _pulled(subject, batch, _singles(count) if each else _halves(count), run=run)
    if is_small(batch) or bool(found.measured.all()):
        return found
    within = _pulled(subject, miniature(batch), covering_groups(count))
    return GradientInfluence(
        across=torch.maximum(found.across, within.across),
        measured=found.measured | within.measured,
        future=max(found.future, within.future),
    )


def _pulled(
    subject: Subject,
    batch: PackedBatch,
    groups: Sequence[Sequence[int]],
    *,
    run: Callable[[], torch.Tensor] | None = None,
) -> GradientInfluence:
    with frozen(subject.parameters()):
        return gradient_influence(
            run or (lambda: subject.logits(batch)),
            batch.input_ids[: batch.boundaries.num_tokens].to(subject.device),
            batch.boundaries.document_lengths,
            generator=torch.Generator().manual_seed(subject.seed),
            groups=groups,
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
    longest one, packed among all others; the noise floors are measured on these four. Of a batch that is not small,
    both on these four, cut to 37 to 61 tokens and packed by themselves.
    """
    moved = subject.apart(batch)
    gradients, gradient_floor = _gradient_equivalence(subject, batch)
    return Equivalence(
        logits=moved,
        noise_floor=floor_for(subject, batch, float(moved.max()), floor_of(subject, batch)),
        gradients=gradients,
        gradient_floor=gradient_floor,
    )


@torch.no_grad()
def floor_of(subject: Subject, batch: PackedBatch, *, whole: bool = False) -> float:
    """The noise floor of the logits of a batch, measured on a few of its documents, cut short unless ``whole``."""
    few = collate(few_documents(batch, whole=whole))
    return noise_floor(lambda: subject.logits(few))


def floor_for(subject: Subject, batch: PackedBatch, moved: float, floor: float) -> float:
    """A floor that may accuse: what moved beyond that of documents cut short is judged by that of whole ones."""
    if is_small(batch) or moved <= FLOOR_FACTOR * floor:
        return floor
    return max(floor, floor_of(subject, batch, whole=True))


def among_equals(subject: Subject, batch: PackedBatch, document: int) -> float:
    """How far a document's logits move from alone to its place in a row of copies of itself: equal neighbours."""
    ids = batch.unpack(batch.input_ids)[document]
    length, count = ids.numel(), batch.boundaries.num_documents
    with torch.no_grad():
        copies = subject.logits(_row(ids.repeat(count), [length] * count)).split(length)
        return largest_difference(copies[document], subject.logits(_row(ids, [length])))


def _row(ids: torch.Tensor, lengths: Sequence[int]) -> PackedBatch:
    return collate([{"input_ids": part} for part in ids.split(list(lengths))])


def _gradient_equivalence(subject: Subject, batch: PackedBatch) -> tuple[float | None, float | None]:
    """The relative difference between packed and alone, and the one that rounding alone may make, if it matters.

    The least that it may make is one rounding, and what is within that of no floor has to be measured.
    """
    compared = _compared_parameters(subject)
    few = few_documents(batch)
    documents = [collate([document]) for document in few]
    supervised = [document for document in documents if document.num_supervised_tokens]
    if not compared or not supervised:
        return None, None
    count = sum(document.num_supervised_tokens for document in supervised)
    together = _supervised_only(batch, few_of(batch)) if is_small(batch) else collate(few)
    packed = _gradients(subject, [together], compared, count)
    if packed is None:
        return None, None
    alone = _gradients(subject, supervised, compared, count)
    assert alone is not None  # noqa: S101 - what has a backward packed has one alone
    size = float(torch.linalg.vector_norm(alone))
    if size == 0.0:
        return float(torch.linalg.vector_norm(packed)), 0.0
    difference = float(torch.linalg.vector_norm(packed - alone)) / size
    rounding = max(torch.finfo(parameter.dtype).eps for parameter in compared)
    if difference <= FLOOR_FACTOR * rounding:
        return difference, rounding
    with perturbed_by_roundings(subject.seed):
        perturbed = _gradients(subject, supervised, compared, count)
    assert perturbed is not None  # noqa: S101 - as above
    noise = float(torch.linalg.vector_norm(perturbed - alone)) / size
    return difference, max(noise, rounding) if noise else UNMEASURED_ROUNDINGS * rounding


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
    gathered = gathering(subject.precision, compared)
    with _borrowed_gradients(compared), frozen(others), torch.enable_grad(), gathered as leaves:
        for batch in batches:
            logits = subject.logits(batch)
            if not logits.requires_grad:
                return None
            loss = packed_loss(logits, _targets(batch, logits.shape[-1]).to(logits.device), denominator=count)
            loss.backward()
        return torch.cat([_gradient_at(leaf, parameter) for leaf, parameter in zip(leaves, compared, strict=True)])


def _gradient_at(leaf: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """What a parameter and the leaf in its place hold together, flat and in float32."""
    total = torch.zeros(parameter.numel(), device=parameter.device)
    for one in (leaf,) if leaf is parameter else (leaf, parameter):
        if one.grad is not None:
            total += local(one.grad.detach()).float().flatten()
    return total


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

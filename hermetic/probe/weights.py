"""The weights instrument: is the loss of a step the same however its documents were packed and accumulated?

Algorithm: the subject's own loss of the packed batch, and of the same documents in other batches, combined as
each convention combines them: by supervised tokens (token mean), by documents (document mean), or as a sum.
Whichever convention fits is the loss's own; if none does, the loss depends on the packing. Where the subject can be
told the number of supervised tokens of the step, micro-batches have to add up to the batch; so do ranks, which
scale by their number and average.
Guarantee: differences within ten noise floors, measured in place, are rounding; larger ones are findings.
Price: two forwards with the loss over at most four documents (of a batch beyond 256 tokens cut to 37 to 61 tokens), two
more where it can be told a count, and three where a floor is needed; no backward.
Blind to: reductions outside of the subject, such as a Trainer's division by accumulation steps; to gradients that
do not follow the loss; and, of a larger batch, to a loss that is computed in chunks of more tokens than are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hermetic.batch import PackedBatch, collate
from hermetic.errors import ProbeError
from hermetic.probe.sample import documents_of, few_documents
from hermetic.probe.subject import Subject
from hermetic.probe.targets import router_part
from hermetic.seal.measure import FLOOR_FACTOR, perturbed_by_roundings

_DRAWS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Relative differences between losses that should be one."""

    packed: float
    """Of the packed loss to the documents' in other batches, by the convention that fits best."""
    accumulated: float | None
    """Of micro-batches, told the step's count, to the batch; ``None`` when the subject cannot be told."""
    router: float | None
    """The share of ``packed`` that a router's auxiliary loss makes; ``None`` when there is none."""
    noise_floor: float
    """One rounding of the loss, or what rounding inside of the subject makes of it where more had to be explained."""

    @property
    def threshold(self) -> float:
        """Larger relative differences are findings."""
        return FLOOR_FACTOR * self.noise_floor

    def readings(self) -> tuple[tuple[str, float], ...]:
        """Name and relative difference of what was measured."""
        named = {"packed": self.packed, "accumulated": self.accumulated, "router": self.router}
        return tuple((name, value) for name, value in named.items() if value is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loss:
    total: float
    router: float
    """The part that a router's auxiliary loss makes."""
    dtype: torch.dtype

    @property
    def main(self) -> float:
        return self.total - self.router


def weights(subject: Subject, batch: PackedBatch) -> Weights:
    """Compare the loss of the packed batch with that of its documents in other batches.

    Raises:
        ProbeError: the subject has no loss, or fewer than two documents are supervised.
    """
    supervised = [document for document in documents_of(batch) if bool((document["labels"] >= 0).any())]
    if len(supervised) < 2:
        raise ProbeError(
            f"the weights instrument needs two documents with labels and got {len(supervised)}; give it longer ones"
        )
    supervised = few_documents(collate(supervised))
    parts = _parts(supervised)
    whole, separate = collate(supervised), [collate(part) for part in parts]
    with torch.no_grad():
        packed = _loss(subject, whole)
        alone = [_loss(subject, part) for part in separate]
        steps = (
            [_loss(subject, one, whole.num_supervised_tokens) for one in (whole, *separate)] if subject.counts else []
        )
    tokens = [part.num_supervised_tokens for part in separate]
    sizes = [len(part) for part in parts]
    total, main = (
        _misfit([getattr(one, which) for one in alone], getattr(packed, which), tokens, sizes)
        for which in ("total", "main")
    )
    together = _relative(sum(one.total for one in steps[1:]), steps[0].total) if steps else None
    rounding = torch.finfo(packed.dtype).eps
    beyond = max(total, together or 0.0) > FLOOR_FACTOR * rounding
    return Weights(
        packed=total,
        accumulated=together,
        router=None if packed.router == 0.0 else max(0.0, total - main),
        noise_floor=max(rounding, _noise(subject, whole, packed)) if beyond else rounding,
    )


def _parts(documents: Sequence[dict[str, torch.Tensor]]) -> list[list[dict[str, torch.Tensor]]]:
    """The first document alone and the rest in two packings: parts of different sizes, whatever the number."""
    middle = 1 + (len(documents) - 1) // 2
    return [list(part) for part in (documents[:1], documents[1:middle], documents[middle:]) if part]


def _loss(subject: Subject, batch: PackedBatch, count: int | None = None) -> _Loss:
    output = subject.output_with_loss(batch, count=count)
    router = router_part(subject, output)
    return _Loss(total=float(output.loss), router=0.0 if router is None else float(router), dtype=output.loss.dtype)


def _misfit(alone: Sequence[float], packed: float, tokens: Sequence[int], sizes: Sequence[int]) -> float:
    """How far the packed loss is from the parts' by the convention that fits best, relative to it."""
    conventions = (tokens, sizes)
    means = [sum(w * x for w, x in zip(c, alone, strict=True)) / sum(c) for c in conventions]
    return min(_relative(combined, packed) for combined in (*means, sum(alone)))


def _relative(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), torch.finfo(torch.float64).tiny)


@torch.no_grad()
def _noise(subject: Subject, batch: PackedBatch, exact: _Loss) -> float:
    """Relative difference of the loss that rounding inside of the subject makes."""
    moved = []
    for seed in range(_DRAWS):
        with perturbed_by_roundings(seed):
            moved.append(_relative(_loss(subject, batch).total, exact.total))
    return max(moved)

"""The targets instrument: which tokens the subject's own loss trains to predict a next one, and which one.

Algorithm: the gradient of the loss at the logits. A token is trained if its logits have a gradient, and the one
logit that the loss pushes up (the smallest gradient) is what it is trained to predict. So the reading needs no
labels to be believed: it shows what the loss makes of them.
Guarantee: exact for losses over logits; a token of one document that is trained to predict one of another is a
leak, whatever mask the attention has.
Price: one forward with the loss, which the gradient instrument takes too, and the backward of the loss alone.
Blind to: losses that are not computed from the logits that are returned (fused kernels). There the gradient at
the embedding of each document's last token is asked instead, which in a causal model only its own prediction
reaches; which of the other tokens carry loss is then not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import ProbeError
from hermetic.probe.report import TargetReading
from hermetic.probe.subject import Subject
from hermetic.seal.measure import frozen, tapped_embeddings


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What the loss trains."""

    reading: TargetReading
    shift: int | None
    """A token is trained to predict the one this many places on: 1. ``None``: the targets are no tokens in order."""


def targets(subject: Subject, batch: PackedBatch) -> Targets:
    """Read which tokens are trained, and to predict what.

    Raises:
        ProbeError: the subject has no loss, or one without a gradient at its logits and at its embeddings.
    """
    if not batch.num_supervised_tokens:
        raise ProbeError("the targets instrument got documents without a single label; expected supervised tokens")
    count = batch.boundaries.num_tokens
    ids = batch.input_ids[:count].to(subject.device)
    with frozen(subject.parameters()), torch.enable_grad(), tapped_embeddings(ids) as taps:
        output = subject.output_with_loss(batch)
        loss = output.loss
        if not loss.requires_grad:
            raise ProbeError(
                "the targets instrument got a loss that is detached from the embeddings; run the model without "
                "torch.no_grad() and without detach()"
            )
        found = _at_logits(output, count)
        if found is not None:
            return _from_logits(batch, *found)
        loss.backward()
        per_token = torch.stack([tap.gradient_per_token(count) for tap in taps]).amax(dim=0)
    return _from_embeddings(batch, per_token)


def logits_and_targets(subject: Subject, batch: PackedBatch) -> tuple[torch.Tensor, Targets] | None:
    """One run with the loss, read for its targets: its logits ``[T, V]`` and these.

    ``None`` where that does not work, for which ``targets`` gives the reason.
    """
    if not batch.num_supervised_tokens:
        return None
    try:
        output = subject.output_with_loss(batch)
    except ProbeError:
        return None
    found = _at_logits(output, batch.boundaries.num_tokens) if output.loss.requires_grad else None
    return None if found is None else (subject.rows_of(output, batch), _from_logits(batch, *found))


def _at_logits(output: Any, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """``[T]`` booleans of trained tokens and ``[T]`` ids of their targets; ``None`` if the loss has no such logits.

    A call in several rows, or with padding, has its logits selected from those that the loss is made of (``whole``).
    """
    logits = getattr(output, "whole", None)
    logits = getattr(output, "logits", None) if logits is None else logits
    if not isinstance(logits, torch.Tensor) or not logits.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(output.loss, [logits], retain_graph=True, allow_unused=True)
    if gradient is None or gradient.numel() < count * gradient.shape[-1]:
        return None
    gradient = gradient.reshape(-1, gradient.shape[-1])
    lines = getattr(output, "lines", None)
    gradient = (gradient if lines is None else gradient[lines.to(gradient.device)])[:count]
    return (gradient != 0).any(dim=-1).cpu(), gradient.argmin(dim=-1).cpu()


def _from_logits(batch: PackedBatch, trained: torch.Tensor, target: torch.Tensor) -> Targets:
    lengths = batch.boundaries.document_lengths
    documents = batch.boundaries.document_ids[: len(trained)].long()
    tokens = _tokens_to_predict(batch)
    sources = trained.nonzero().flatten()
    shift = next((shift for shift in (1, 0, 2) if _all_match(sources, target, tokens, shift)), None)
    ahead = sources + (1 if shift is None else shift)
    inside = ahead < len(trained)
    across = documents[sources[inside]] != documents[ahead[inside]]
    return Targets(
        reading=TargetReading(
            expected=_counts(batch.labels[: len(trained)].cpu() != IGNORE_INDEX, lengths),
            trained=_counts(trained, lengths),
            across=tuple(documents[sources[inside][across]].unique().tolist()),
        ),
        shift=shift,
    )


def _tokens_to_predict(batch: PackedBatch) -> torch.Tensor:
    """``[T]``: the label of each token where it has one, else the token itself."""
    ids, labels = (x[: batch.boundaries.num_tokens].cpu() for x in (batch.input_ids, batch.labels))
    return torch.where(labels == IGNORE_INDEX, ids, labels)


def _all_match(sources: torch.Tensor, target: torch.Tensor, tokens: torch.Tensor, shift: int) -> bool:
    inside = sources[sources + shift < len(tokens)]
    return bool(inside.numel()) and torch.equal(target[inside], tokens[inside + shift])


def _from_embeddings(batch: PackedBatch, per_token: torch.Tensor) -> Targets:
    lengths = batch.boundaries.document_lengths
    present = [(end, length, i) for i, (end, length) in enumerate(zip(_ends(lengths), lengths, strict=True)) if length]
    return Targets(
        reading=TargetReading(
            expected=_counts(batch.labels[: len(per_token)].cpu() != IGNORE_INDEX, lengths),
            trained=None,
            across=tuple(i for end, _, i in present if float(per_token[end - 1]) != 0.0),
        ),
        shift=1,
    )


def _ends(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def _counts(marked: torch.Tensor, lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(part.sum()) for part in marked.split(list(lengths)))

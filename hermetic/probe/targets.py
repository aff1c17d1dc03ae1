"""The targets instrument: which tokens the subject's own loss trains to predict a next one, and which one.

Algorithm: the gradient of the loss at the logits. A token is trained if its logits have a gradient, and the one
logit that the loss pushes up (the smallest gradient) is what it is trained to predict. So the reading needs no
labels to be believed: it shows what the loss makes of them. Penalties on the size of logits and the balance of experts
touch tokens as well, and train none to predict another; a prediction that is certain has no gradient, and is trained.
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
        loss = _without_router(subject, output)
        if not loss.requires_grad:
            raise ProbeError(
                "the targets instrument got a loss that is detached from the embeddings; run the model without "
                "torch.no_grad() and without detach()"
            )
        found = _at_logits(output, batch)
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
    found = _at_logits(output, batch) if output.loss.requires_grad else None
    return None if found is None else (subject.rows_of(output, batch), _from_logits(batch, *found))


def router_part(subject: Subject, output: Any) -> torch.Tensor | None:
    """A router's share of a loss: transformers returns it, and adds it times a coefficient of the configuration."""
    router = getattr(output, "aux_loss", None)
    configs = [getattr(module, "config", None) for module in subject.modules]
    found = [c for config in configs if (c := getattr(config, "router_aux_loss_coef", None)) is not None]
    return float(found[0]) * router if found and isinstance(router, torch.Tensor) else None


def _without_router(subject: Subject, output: Any) -> torch.Tensor:
    """The loss without what balances experts: that trains every token, and none to predict another."""
    loss: torch.Tensor = output.loss
    router = router_part(subject, output)
    return loss if router is None or not loss.requires_grad else loss - router.to(loss.device)


def _at_logits(output: Any, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
    """``[T]`` booleans of trained tokens and ``[T]`` ids of their targets; ``None`` if the loss has no such logits.

    A call in several rows, or with padding, has its logits selected from those that the loss is made of (``whole``).
    """
    logits, count = getattr(output, "whole", None), batch.boundaries.num_tokens
    logits = getattr(output, "logits", None) if logits is None else logits
    if not isinstance(logits, torch.Tensor) or not logits.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(output.loss, [logits], retain_graph=True, allow_unused=True)
    if gradient is None or gradient.numel() < count * gradient.shape[-1]:
        return None
    width, lines = gradient.shape[-1], getattr(output, "lines", None)
    rows = max(1, _BLOCK // width)
    whole = [x.detach().reshape(-1, width) for x in (gradient, logits)]
    parts = [(x if lines is None else x[lines.to(x.device)])[:count].split(rows) for x in whole]
    expected = _expected(batch).to(gradient.device).split(rows)
    read = [_read(*part, count=count) for part in zip(parts[0], parts[1], expected, strict=True)]
    trained, target = (torch.cat(found).cpu() for found in zip(*read, strict=True))
    return trained, target


_BLOCK = 2**22
"""Numbers that are read at a time: a row of logits is larger than what made it."""


def _expected(batch: PackedBatch) -> torch.Tensor:
    """``[T]``: the label that each token is to predict, by its own document; -100 where it is to predict none."""
    count, ends = batch.boundaries.num_tokens, batch.boundaries.cu_seqlens[1:].long() - 1
    following = torch.nn.functional.pad(batch.labels[1:count].cpu(), (0, 1), value=IGNORE_INDEX)
    return following.index_fill(0, ends, IGNORE_INDEX)


def _read(
    gradient: torch.Tensor, logits: torch.Tensor, expected: torch.Tensor, *, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of some rows of logits: which are trained to predict, and what.

    What makes one token likelier makes others less so, by as much: gradients of a prediction add up to 0. What adds
    to all in proportion to their probability, as a penalty on the size of logits does, predicts nothing. And a
    prediction that is certain has a gradient of 0 if 1 - p is below the smallest number of its dtype.
    """
    probabilities, pull = logits.double().softmax(dim=-1), gradient.double()
    pull -= probabilities * pull.sum(dim=-1, keepdim=True)
    size, limits = gradient.double().abs().amax(dim=-1), torch.finfo(gradient.dtype)
    trained = pull.abs().amax(dim=-1) > size * limits.eps**0.5
    wanted = expected.clamp(0, logits.shape[-1] - 1)
    doubt = -torch.expm1(logits.double().log_softmax(dim=-1).gather(-1, wanted[:, None]))[:, 0]
    certain = (expected != IGNORE_INDEX) & (size == 0.0) & (doubt <= count * limits.smallest_normal * limits.eps)
    return trained | certain, torch.where(certain, wanted, pull.argmin(dim=-1))


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

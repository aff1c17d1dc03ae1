"""Divergence from a teacher, document by document.

Algorithm: for a chunk of supervised rows at a time, the logits of student and teacher are taken or made from hidden
states, divided by the temperature, and their divergence over the vocabulary is summed token by token; the backward
pass makes a chunk again (checkpointing). With p the teacher's and q the student's probabilities::

    "forward"    KL(p || q) = sum over v of p[v] * (log p[v] - log q[v])
    "reverse"    KL(q || p) = sum over v of q[v] * (log q[v] - log p[v])

Guarantee: entries without probability cost nothing, as 0 * log 0 = 0; the teacher gets no gradient; a document's
divergence does not depend on its neighbours. Price: each chunk twice, a few times chunk x V numbers, and one more
gradient of the output layer's weight while a chunk's is added.
"""

from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint

from hermetic.batch import PackedBatch
from hermetic.errors import LossError
from hermetic.loss.dense import document_sums
from hermetic.loss.linear import LinearHead
from hermetic.loss.options import check_chunk, check_number
from hermetic.loss.sweep import Recipe
from hermetic.loss.targets import Targets, check_stream, place_in_batch, stream_of, targets_from_labels
from hermetic.loss.weighing import supervised_tokens

Direction = Literal["forward", "reverse"]


def document_kl(
    student: torch.Tensor | LinearHead,
    teacher: torch.Tensor | LinearHead,
    batch: PackedBatch,
    *,
    direction: Direction = "forward",
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> torch.Tensor:
    """Divergence between student and teacher, summed over each document's supervised tokens.

    Args:
        student: Logits [T, V] or [1, T, V], or a ``LinearHead`` of hidden states, whose logits are never whole.
        teacher: The same of the teacher, over the same vocabulary.
        batch: The batch that both were computed from, on the same device.
        direction: ``"forward"``: KL(teacher || student). ``"reverse"``: KL(student || teacher).
        temperature: What both logits are divided by. Gradients shrink with its square: multiply the loss by
            ``temperature ** 2`` where it is added to one at temperature 1.
        chunk_tokens: Tokens whose logits are worked on at a time. Default: as many as have 2**25.

    Returns:
        [D] in nats, differentiable in what is the student's. ``weigh_documents`` makes a loss of it.

    Raises:
        LossError: If shapes, devices or vocabularies do not fit, or an option is out of its range.
        NonFiniteError: If the divergence at a supervised token is NaN or infinite, as where one gives
            probability 0 to what the other gives some.

    Example:
        Against a teacher who gives 3/4 to one of two entries, equal student logits cost 0.1308 nats a token.

        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [0, 1, 1]}, {"input_ids": [1, 0]}])
        >>> teacher = torch.tensor([0.75, 0.25]).log().expand(5, 2)
        >>> document_kl(torch.zeros(5, 2), teacher, batch)
        tensor([0.2616, 0.1308])
        >>> document_kl(teacher, teacher, batch)
        tensor([0., 0.])
    """
    if direction not in ("forward", "reverse"):
        raise LossError(f"direction is {direction!r}, expected 'forward' or 'reverse'")
    check_number("temperature", temperature, above=True)
    check_chunk(chunk_tokens)
    rows, targets = _supervised_rows(student, "student", batch)
    others, _ = _supervised_rows(teacher, "teacher", batch)
    vocabulary, others_vocabulary = _vocabulary(rows), _vocabulary(others)
    if vocabulary != others_vocabulary:
        raise LossError(
            f"the student has {vocabulary} entries and the teacher {others_vocabulary}, expected one vocabulary"
        )

    def divergence(chunk: slice) -> torch.Tensor:
        with torch.no_grad():
            p = (_logits(others, chunk) / temperature).log_softmax(dim=1)
        q = (_logits(rows, chunk) / temperature).log_softmax(dim=1)
        return _kl(p, q) if direction == "forward" else _kl(q, p)

    chunks = Recipe(chunk_tokens=chunk_tokens).chunks(len(targets), vocabulary)
    parts = [checkpoint(divergence, chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    tokens = torch.cat(parts) if parts else divergence(slice(0))
    targets.refuse_non_finite(tokens, rows.hidden.dtype if isinstance(rows, LinearHead) else rows.dtype)
    return document_sums(tokens, supervised_tokens(batch))


def _supervised_rows(
    source: torch.Tensor | LinearHead, name: str, batch: PackedBatch
) -> tuple[torch.Tensor | LinearHead, Targets]:
    """The source's rows that predict a supervised token, flat, and these tokens."""
    head = source if isinstance(source, LinearHead) else None
    values: Any = source if head is None else head.hidden
    what = f"{name} logits" if head is None else f"{name} hidden states"
    flat = stream_of(values, batch, name=what, letter="V" if head is None else "K")
    check_stream(flat, batch.labels, name=what)
    targets = targets_from_labels(batch.labels, _vocabulary(source), place_in_batch(batch))
    rows = targets.rows(flat)
    if head is None:
        return rows, targets
    chosen = LinearHead(
        hidden=rows,
        weight=head.weight,
        bias=head.bias,
        logit_scale=head.logit_scale,
        logit_softcap=head.logit_softcap,
    )
    return chosen, targets


def _vocabulary(source: torch.Tensor | LinearHead) -> int:
    return source.weight.shape[0] if isinstance(source, LinearHead) else source.shape[-1]


def _logits(source: torch.Tensor | LinearHead, chunk: slice) -> torch.Tensor:
    if isinstance(source, LinearHead):
        return source.logits(chunk)
    return source[chunk].to(torch.promote_types(source.dtype, torch.float32))


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """[C] KL(p || q) of log-probabilities [C, V]."""
    p = log_p.exp()
    # before the product, for a NaN that is masked after it comes back in the gradient
    difference = (log_p - log_q).masked_fill(p == 0, 0.0)
    return (p * difference).sum(dim=1)

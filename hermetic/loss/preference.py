"""Preference losses over the documents of packed rows.

Algorithm: all of them take the log-probabilities of documents, [D], as ``document_log_probs`` or
``document_log_probs_from_hidden`` give them, of the policy and of a frozen reference, and the numbers or
roles of documents. With log-ratios ``r = policy - reference`` and a pair's margin ``m = r[chosen] - r[rejected]``::

    DPO, "sigmoid"   -log sigmoid(beta * m)
    DPO, "hinge"     max(0, 1 - beta * m)
    DPO, "ipo"       (m - 1 / (2 * beta)) ** 2
    KTO, chosen      weight * (1 - sigmoid(beta * (r - z)))        z the reference point
    KTO, rejected    weight * (1 - sigmoid(beta * (z - r)))
    ORPO's term      -beta * log sigmoid(odds[chosen] - odds[rejected])
                     odds = a - log(1 - exp(a)), a the policy's mean log-probability of a document's tokens

Guarantee: what a pair costs depends on its two documents alone; equal policies cost ln 2 a pair under "sigmoid". A loss
is a sum over pairs (KTO: documents) divided by their number, in the whole step if that is given, so it does not
depend on packing either. Price: O(documents).
"""

from typing import Literal

import torch
from torch.nn.functional import logsigmoid

from hermetic.errors import LossError, NonFiniteError
from hermetic.loss.options import check_number
from hermetic.loss.pairs import CHOSEN, NEITHER, Pairs, Roles, checked_pairs, checked_roles
from hermetic.loss.weighing import divisor, tell_if_none

Kind = Literal["sigmoid", "hinge", "ipo"]


def dpo_loss(
    policy_log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    pairs: Pairs,
    *,
    beta: float = 0.1,
    kind: Kind = "sigmoid",
    token_counts: torch.Tensor | None = None,
    denominator: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Direct preference optimization over pairs of documents.

    Args:
        policy_log_probs: [D] of the model in training.
        reference_log_probs: [D] of the reference; it gets no gradient.
        pairs: [P, 2] numbers of the chosen and the rejected document; ``pairs_from_roles`` makes them.
        beta: How strongly the policy is held to the reference, above 0.
        kind: ``"sigmoid"``, ``"hinge"`` or ``"ipo"``, by the formulas above.
        token_counts: Only with ``"ipo"``: [D] ``supervised_tokens(batch)``, by which each log-ratio is
            then divided, as TRL does. Default: sums, as in the paper.
        denominator: Pairs of the whole step. Default: P.

    Returns:
        A scalar; 0.0 with a notice when there is no pair.

    Raises:
        LossError: If shapes or devices do not fit, a pair names no documents, or an option is unknown.
        NonFiniteError: If a log-probability is NaN or infinite.

    Example:
        >>> log_probs = torch.tensor([-3.0, -8.0, -5.0])
        >>> dpo_loss(log_probs, log_probs, [(0, 1)])
        tensor(0.6931)
        >>> dpo_loss(log_probs, torch.tensor([-4.0, -7.0, -5.0]), [(0, 1)], beta=0.5)
        tensor(0.3133)
    """
    if kind not in ("sigmoid", "hinge", "ipo"):
        raise LossError(f"kind is {kind!r}, expected 'sigmoid', 'hinge' or 'ipo'")
    check_number("beta", beta, above=True)
    ratios = _log_ratios(policy_log_probs, reference_log_probs)
    if token_counts is not None:
        if kind != "ipo":
            raise LossError(f"token_counts came with kind={kind!r}, expected them with 'ipo' alone; leave them out")
        ratios = ratios / _divisors(token_counts, ratios, pairs)
    numbers = checked_pairs(pairs, len(ratios), ratios.device)
    margins = ratios[numbers[:, 0]] - ratios[numbers[:, 1]]
    tell_if_none(len(margins), what="pairs", why="no two documents of this batch are a pair")
    return _pair_costs(margins, beta, kind).sum() / _number(len(margins), denominator)


def kto_loss(
    policy_log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    roles: Roles,
    *,
    beta: float = 0.1,
    reference_point: float | torch.Tensor = 0.0,
    chosen_weight: float = 1.0,
    rejected_weight: float = 1.0,
    denominator: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Kahneman-Tversky optimization over single documents, each desirable (chosen) or not (rejected).

    Args:
        policy_log_probs: [D] of the model in training.
        reference_log_probs: [D] of the reference; it gets no gradient.
        roles: [D] 1 chosen, 2 rejected, 0 left out.
        beta: As in ``dpo_loss``.
        reference_point: z, 0 or more; ``kto_reference_point`` estimates it.
        chosen_weight: Of each chosen document, 0 or more.
        rejected_weight: Of each rejected document, 0 or more.
        denominator: Documents with a role in the whole step. Default: those of this batch.

    Returns:
        A scalar; 0.0 with a notice when no document has a role.

    Raises:
        LossError: If shapes or devices do not fit, a role is unknown, or a number is out of its range.
        NonFiniteError: If a log-probability is NaN or infinite.

    Example:
        Equal policies cost half the weight of each document.

        >>> log_probs = torch.tensor([-3.0, -8.0])
        >>> kto_loss(log_probs, log_probs, [1, 2])
        tensor(0.5000)
    """
    check_number("beta", beta, above=True)
    check_number("chosen_weight", chosen_weight)
    check_number("rejected_weight", rejected_weight)
    alone = isinstance(reference_point, torch.Tensor) and reference_point.numel() == 1
    point = float(reference_point) if alone else reference_point
    check_number("reference_point", point)
    ratios = _log_ratios(policy_log_probs, reference_log_probs)
    values = checked_roles(roles)
    if len(values) != len(ratios):
        raise LossError(f"roles have shape {list(values.shape)}, expected [{len(ratios)}]: one for each document")
    kept = (values != NEITHER).nonzero().squeeze(1)
    tell_if_none(len(kept), what="documents with a role", why="no document of this batch is chosen or rejected")
    chosen = (values[kept] == CHOSEN).to(ratios.device)
    advantage = beta * (ratios[kept.to(ratios.device)] - point)
    # 1 - sigmoid(x) is sigmoid(-x), without the cancellation
    costs = torch.where(chosen, chosen_weight * torch.sigmoid(-advantage), rejected_weight * torch.sigmoid(advantage))
    return costs.sum() / _number(len(costs), denominator)


def kto_reference_point(policy_log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """KTO's estimate of how far the policy is from the reference: their mean log-ratio, at least 0.

    Args:
        policy_log_probs: [D] of documents that pair each prompt with the answer to another one.
        reference_log_probs: [D] of the same.

    Returns:
        A scalar without gradient. Average it over ranks before use.

    Raises:
        LossError: If shapes or devices do not fit, or there is no document.
        NonFiniteError: If a log-probability is NaN or infinite.

    Example:
        >>> kto_reference_point(torch.tensor([-3.0, -8.0]), torch.tensor([-4.0, -8.0]))
        tensor(0.5000)
    """
    ratios = _log_ratios(policy_log_probs, reference_log_probs)
    if len(ratios) == 0:
        raise LossError("there are no documents, expected at least one to estimate the reference point from")
    return ratios.detach().mean().clamp(min=0)


def odds_ratio_loss(
    log_probs: torch.Tensor,
    token_counts: torch.Tensor,
    pairs: Pairs,
    *,
    beta: float = 0.1,
    denominator: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """ORPO's odds-ratio term. Its other term is the loss of the chosen documents, for ``packed_loss`` to take.

    Args:
        log_probs: [D] of the model in training; there is no reference.
        token_counts: [D] ``supervised_tokens(batch)``.
        pairs: [P, 2] as in ``dpo_loss``.
        beta: The weight of the term, above 0 (the paper's lambda).
        denominator: Pairs of the whole step. Default: P.

    Returns:
        A scalar; 0.0 with a notice when there is no pair.

    Raises:
        LossError: If shapes or devices do not fit, a document of a pair has no supervised token, or a number is out
            of its range.
        NonFiniteError: If a log-probability is NaN or infinite, or a document has probability 1, whose odds are.

    Example:
        >>> odds_ratio_loss(torch.tensor([-2.0, -4.0]), torch.tensor([2, 4]), [(0, 1)], beta=1.0)
        tensor(0.6931)
    """
    check_number("beta", beta, above=True)
    _check_log_probs("log_probs", log_probs)
    numbers = checked_pairs(pairs, len(log_probs), log_probs.device)
    tell_if_none(len(numbers), what="pairs", why="no two documents of this batch are a pair")
    means = (log_probs / _divisors(token_counts, log_probs, pairs))[numbers]
    certain = (means.detach() >= 0).nonzero()
    if len(certain):
        document = int(numbers[tuple(certain[0])])
        raise NonFiniteError(
            f"document {document} has the log-probability {float(log_probs[document])}, expected one below 0, for the "
            f"odds of a certain document are infinite"
        )
    odds = means - _log_one_minus_exp(means)
    costs = -logsigmoid(odds[:, 0] - odds[:, 1])
    return beta * costs.sum() / _number(len(costs), denominator)


def _pair_costs(margins: torch.Tensor, beta: float, kind: Kind) -> torch.Tensor:
    if kind == "sigmoid":
        return -logsigmoid(beta * margins)
    if kind == "hinge":
        return (1.0 - beta * margins).relu()
    return (margins - 1.0 / (2.0 * beta)).square()


def _number(count: int, denominator: float | torch.Tensor | None) -> float:
    return divisor(torch.ones(count, dtype=torch.int64), "document", denominator)


def _log_one_minus_exp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(x)) for x below 0, by whichever of two forms keeps its digits; both are finite everywhere."""
    near = x > -0.6931471805599453  # ln 2: there both are as good
    by_expm1 = (-torch.expm1(x)).log()
    by_log1p = torch.log1p(-x.masked_fill(near, -1.0).exp())
    return torch.where(near, by_expm1, by_log1p)


def _log_ratios(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    _check_log_probs("policy_log_probs", policy)
    _check_log_probs("reference_log_probs", reference)
    if policy.shape != reference.shape or policy.device != reference.device:
        raise LossError(
            f"reference_log_probs have shape {list(reference.shape)} on {reference.device}, expected "
            f"{list(policy.shape)} on {policy.device}, as policy_log_probs have: both are of the same documents"
        )
    return policy - reference.detach()


def _check_log_probs(name: str, values: torch.Tensor) -> None:
    if not isinstance(values, torch.Tensor):
        raise LossError(f"{name} is of type {type(values).__name__}, expected a tensor [D] of log-probabilities")
    if values.ndim != 1 or not values.dtype.is_floating_point:
        raise LossError(
            f"{name} have shape {list(values.shape)} and dtype {values.dtype}, expected [D] of a floating one"
        )
    broken = (~values.detach().isfinite()).nonzero()
    if len(broken):
        document = int(broken[0])
        raise NonFiniteError(f"{name}[{document}] is {float(values[document])}, expected finite log-probabilities")


def _divisors(token_counts: torch.Tensor, values: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """[D] counts to divide by; those of documents in no pair may be 0."""
    counts = torch.as_tensor(token_counts).cpu()
    if counts.shape != values.shape or counts.dtype.is_floating_point or counts.dtype == torch.bool:
        raise LossError(
            f"token_counts have shape {list(counts.shape)} and dtype {counts.dtype}, expected {list(values.shape)} "
            f"whole numbers, as hermetic.loss.supervised_tokens(batch) gives them"
        )
    numbers = checked_pairs(pairs, len(values), torch.device("cpu"))
    empty = (counts[numbers] < 1).nonzero()
    if len(empty):
        document = int(numbers[tuple(empty[0])])
        raise LossError(
            f"token_counts[{document}] is {int(counts[document])}, expected a supervised token in every document of a "
            f"pair"
        )
    return counts.clamp(min=1).to(values.device, values.dtype)

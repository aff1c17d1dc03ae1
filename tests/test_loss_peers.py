"""TRL's trainers compute the same preference and distillation losses of the same log-probabilities and logits."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from loss_helpers import random_documents

from hermetic.batch import collate
from hermetic.loss import (
    document_kl,
    dpo_loss,
    kto_loss,
    kto_reference_point,
    odds_ratio_loss,
    supervised_tokens,
    weigh_documents,
)

trl = pytest.importorskip("trl", reason="trl is an optional extra")

PAIRS = [(0, 1), (2, 3), (4, 5)]
ROLES = [1, 2] * 3
SLOTS = 9


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL about its own modules


def documents_in_rows():
    """Six documents, [6, 9] per-token log-probabilities of a policy under TRL's shift, and reference sums."""
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 9, 4, 7, 6, 3)
    mask = torch.zeros(6, SLOTS, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, 2:length] = 1
    token_log_probs = -torch.rand(6, SLOTS - 1, generator=generator) * mask[:, 1:]
    reference = -3 * torch.rand(6, generator=generator)
    return mask, token_log_probs, reference


def trl_self(**settings):
    """What TRL's loss functions read of their trainer, the metrics thrown away."""
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x)
    return SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        use_weighting=False,
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        loss_weights=[1.0],
        calculate_KL=True,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        **settings,
    )


def model_giving(token_log_probs):
    """A model in TRL's eyes: fused output layers give log-probabilities instead of logits."""
    zeros = torch.zeros_like(token_log_probs)
    found = SimpleNamespace(log_probs=token_log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    return lambda **_: found


def chosen_first(values):
    """TRL's batches are all chosen and then all rejected."""
    return torch.cat([values[[chosen for chosen, _ in PAIRS]], values[[rejected for _, rejected in PAIRS]]])


@pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo"])
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_dpo_is_trls(kind, beta):
    mask, tokens, reference = documents_in_rows()
    chosen, rejected = chosen_first(reference).chunk(2)
    inputs = {
        "input_ids": chosen_first(torch.ones_like(mask)),
        "attention_mask": chosen_first(torch.ones_like(mask)),
        "completion_mask": chosen_first(mask),
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    theirs = trl.DPOTrainer._compute_loss(
        trl_self(beta=beta, loss_types=[kind], label_smoothing=0.0), model_giving(chosen_first(tokens)), inputs, False
    )
    counts = mask.sum(dim=1) if kind == "ipo" else None
    ours = dpo_loss(tokens.sum(dim=1), reference, PAIRS, beta=beta, kind=kind, token_counts=counts)

    assert ours.item() == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.3, 0.6)])
def test_kto_is_trls(weights):
    mask, tokens, reference = documents_in_rows()
    mismatched = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.2, -3.1])
    own = trl_self(beta=0.4, loss_type="kto", desirable_weight=weights[0], undesirable_weight=weights[1])
    own._compute_kl_logps = lambda _model, _batch: mismatched[0]
    inputs = {
        "input_ids": torch.ones_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": torch.tensor(ROLES) == 1,
        "ref_logps": reference,
        "ref_KL_logps": mismatched[1],
    }
    theirs = trl.KTOTrainer._compute_loss(own, model_giving(tokens), inputs, False)
    ours = kto_loss(
        tokens.sum(dim=1),
        reference,
        ROLES,
        beta=0.4,
        reference_point=kto_reference_point(*mismatched),
        chosen_weight=weights[0],
        rejected_weight=weights[1],
    )

    assert ours.item() == pytest.approx(float(theirs), rel=1e-6)


def test_the_odds_ratio_term_is_trls():
    from trl.experimental.orpo import ORPOTrainer

    mask, tokens, _ = documents_in_rows()
    counts = mask.sum(dim=1)
    means = tokens.sum(dim=1) / counts
    losses, *_ = ORPOTrainer.odds_ratio_loss(trl_self(beta=0.3), *chosen_first(means).chunk(2))
    ours = odds_ratio_loss(tokens.sum(dim=1), counts, PAIRS, beta=0.3)

    assert ours.item() == pytest.approx(-losses.mean().item(), rel=1e-6)


@pytest.mark.parametrize(("direction", "beta"), [("forward", 0), ("reverse", 1)])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergence_is_trls(direction, beta, temperature):
    from trl.experimental.gkd import GKDTrainer

    generator = torch.Generator().manual_seed(0)
    batch = collate(random_documents((5, 3, 7), 11, generator))
    student, teacher = torch.randn(2, batch.num_slots, 11, generator=generator)
    labels = torch.cat([batch.labels[1:], torch.tensor([-100])])
    theirs = GKDTrainer.generalized_jsd_loss(
        student[None],
        teacher[None],
        labels[None],
        beta=beta,
        temperature=temperature,
        num_items_in_batch=int(supervised_tokens(batch).sum()),
    )
    sums = document_kl(student, teacher, batch, direction=direction, temperature=temperature)

    assert weigh_documents(sums, batch).item() == pytest.approx(theirs.item(), rel=1e-5)

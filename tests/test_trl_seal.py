"""TRL's own SFTTrainer(packing=True): what it does with four architectures as they are, and with the same ones sealed.

Nothing of TRL is patched. Models are tiny, the tokenizer is the demo's, and the data set is in memory.
"""

import itertools
import logging

import pytest
import torch
from data_helpers import demo_tokenizer
from torch import nn

import hermetic
from hermetic.atlas import build_tiny

trl = pytest.importorskip("trl", reason="trl is an optional extra")
datasets = pytest.importorskip("datasets", reason="datasets is an optional extra")

SILENT = ("minimax", "opt")
CRASHING = ("qwen3_5_text", "bamba")
CONTROL = ("llama",)
_SLOW = {"minimax", "qwen3_5_text", "bamba"}
TEXTS = [" ".join(["the cat sat on the mat and"] * count) for count in (1, 2, 3, 1, 4, 2, 1, 3)]
STEPS = 2

# TRL and PEFT call transformers by names that it deprecates
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def each_of(*families):
    marks = {family: [pytest.mark.slow] * (family in _SLOW) for family in families}
    return pytest.mark.parametrize("family", [pytest.param(family, marks=found) for family, found in marks.items()])


def model_of(family):
    """A tiny model with the tokenizer's vocabulary."""
    model = build_tiny(family)
    model.resize_token_embeddings(len(demo_tokenizer()))
    return model


def trainer_of(model, folder):
    """TRL's trainer as its documentation sets it up, on a CPU; without the loss of experts, which is of whole rows."""
    datasets.disable_progress_bars()
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        packing=True,
        max_length=64,
        per_device_train_batch_size=1,
        max_steps=STEPS,
        logging_steps=1,
        router_aux_loss_coef=0.0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    return trl.SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"text": TEXTS}),
        processing_class=demo_tokenizer(),
    )


def losses_of(trainer):
    """Train, and return the loss of each step."""
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def first_batch(trainer):
    """What TRL gives the model, and the documents in it."""
    inputs = next(iter(trainer.get_train_dataloader()))
    edges = inputs["cu_seq_lens_q"].tolist()
    spans = [slice(*pair) for pair in itertools.pairwise(edges)]
    return inputs, [{"input_ids": inputs["input_ids"][0, span], "labels": inputs["labels"][0, span]} for span in spans]


def probed(trainer, documents):
    """The probe on those documents, each run collated by TRL and called as TRL calls the model."""

    def forward(batch):
        row = {"input_ids": batch.input_ids.tolist(), "seq_lengths": list(batch.boundaries.document_lengths)}
        inputs = trainer.data_collator([row])
        del inputs["labels"]
        return trainer.model(**inputs, use_cache=False).logits

    return hermetic.probe(forward, documents=documents)


def loss_of_each_alone(model, documents):
    """Mean over all targets, each document in a row of its own."""
    losses = []
    for document in documents:
        logits = model(input_ids=document["input_ids"][None], use_cache=False).logits[0]
        losses.append(nn.functional.cross_entropy(logits[:-1], document["input_ids"][1:], reduction="none"))
    return float(torch.cat(losses).mean())


@torch.no_grad()
def distance_from_alone(trainer, inputs, documents):
    """How far TRL's loss of a batch is from that of its documents alone."""
    trainer.model.eval()
    packed = float(trainer.compute_loss(trainer.model, dict(inputs)))
    return abs(packed - loss_of_each_alone(trainer.model, documents))


def most_that_logits_explain(report, loss):
    """A token's loss moves by at most twice what its logits move by; the rest is the rounding of two sums of losses."""
    tokens = sum(report.lengths)
    return 2 * float(report.equivalence.max()) + tokens * torch.finfo(torch.float32).eps * loss


@each_of(*SILENT)
def test_as_shipped_it_trains_on_documents_that_reach_each_other_and_says_nothing(family, tmp_path, caplog):
    trainer = trainer_of(model_of(family), tmp_path)
    inputs, documents = first_batch(trainer)
    report = probed(trainer, documents)
    with caplog.at_level(logging.WARNING):
        losses = losses_of(trainer)

    assert len(documents) > 1
    assert torch.isfinite(torch.tensor(losses)).all()
    assert len(losses) == STEPS
    assert "contamina" not in caplog.text
    assert report.verdict == "leak"
    assert float(report.influence.max()) > 1.0
    assert distance_from_alone(trainer, inputs, documents) > 1e-3


@each_of(*CRASHING)
def test_as_shipped_it_stops_where_the_kernels_of_a_hybrid_are_not_installed(family, tmp_path):
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        trainer_of(model_of(family), tmp_path).train()


@each_of(*SILENT, *CRASHING, *CONTROL)
def test_a_sealed_model_trains_and_its_documents_are_alone_in_trls_own_batch(family, tmp_path):
    trainer = trainer_of(hermetic.seal(model_of(family)), tmp_path)
    inputs, documents = first_batch(trainer)
    before = nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    report = probed(trainer, documents)
    distance = distance_from_alone(trainer, inputs, documents)
    losses = losses_of(trainer)

    assert len(documents) > 1
    assert report.verdict == "sealed"
    assert {name for name, _ in report.not_run} == {"targets", "weights"}  # what is probed here returns no loss
    assert distance <= most_that_logits_explain(report, losses[0])
    assert len(losses) == STEPS
    assert torch.isfinite(torch.tensor(losses)).all()
    assert not torch.equal(nn.utils.parameters_to_vector(trainer.model.parameters()), before)


def test_llama_needs_no_seal_in_trl(tmp_path):
    trainer = trainer_of(model_of("llama"), tmp_path)
    _, documents = first_batch(trainer)

    assert probed(trainer, documents).verdict == "sealed"

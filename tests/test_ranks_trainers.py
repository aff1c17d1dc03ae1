"""Trainers on two ranks do what they do on one: evaluation, each loss, preferences, and Lightning."""

import json
import os

import pytest
import torch
from data_helpers import DEMO_TOKENIZER, write_jsonl
from rank_helpers import on_ranks
from stack_helpers import losses_alone, network, reduced, sealed, weights_of
from test_stack_trainer import DOCUMENTS, REDUCTIONS, ROWS, losses_of, step_alone, trainer_of

from hermetic.data import PackedDataset, pack_sources
from hermetic.integrations.batches import no_loss
from hermetic.integrations.transformers import PaddedCollator
from hermetic.seal import seal

BOUND = 1e-12
"""Relative, in float64: roundings of sums in another order."""

STEPS = 2
RATE = 0.1


def as_a_launcher_does(rank):
    """What torchrun tells each of two processes; the group is started already, by ``on_ranks``."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}


def written(folder, rank, found):
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def results(folder):
    """What each rank wrote."""
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def evaluations(folder):
    """The loss of an evaluation, by reduction: packed in batches of one row, padded in batches of two."""
    found = {}
    packed, plain = sealed().double(), network().double()
    for reduction in REDUCTIONS:
        for name, model, options in (
            ("packed", packed, {"per_device_eval_batch_size": 1}),
            ("padded", plain, {"per_device_eval_batch_size": 2, "collator": PaddedCollator()}),
        ):
            trainer = trainer_of(model, folder, options={"loss_reduction": reduction}, **options)
            found[f"{reduction}, {name}"] = trainer.evaluate()["eval_loss"]
    return found


def trained(folder, reduction, **changes):
    """Weights after one step over all rows, which are three micro-batches on each rank, one of them blank."""
    model = sealed().double()
    trainer = trainer_of(model, folder, options={"loss_reduction": reduction}, **changes)
    losses = losses_of(trainer)
    assert trainer.state.global_step == 1
    return {"losses": losses, "weights": weights_of(model).tolist()}


def on_one_rank(rank, folder, reductions):
    as_a_launcher_does(rank)
    found = {reduction: trained(folder, reduction, gradient_accumulation_steps=3) for reduction in reductions}
    written(folder, rank, {"evaluations": evaluations(folder), "trained": found})


def furthest_from(found, expected, before):
    """Largest difference of weights, relative to the largest step of any."""
    step = (expected - before).abs().max()
    assert step > 1e-3
    return ((torch.tensor(found, dtype=torch.float64) - expected).abs().max() / step).item()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    on_ranks(on_one_rank, folder, ["document"])
    return results(folder)


def test_evaluation_on_two_ranks_is_the_loss_of_all_documents_packed_and_padded_in_any_batches(two_ranks):
    alone = losses_alone(network().double(), DOCUMENTS)
    expected = {reduction: reduced(alone, reduction) for reduction in REDUCTIONS}

    for found in two_ranks:
        assert len(found["evaluations"]) == len(REDUCTIONS) * 2
        for name, loss in found["evaluations"].items():
            assert loss == pytest.approx(expected[name.partition(",")[0]], rel=BOUND), name


def check_trained(found, reduction):
    expected = step_alone(network().double(), DOCUMENTS, reduction)
    before = weights_of(network().double())
    loss = reduced(losses_alone(network().double(), DOCUMENTS), reduction)

    for one in found:
        assert furthest_from(one["trained"][reduction]["weights"], expected, before) < BOUND
        assert one["trained"][reduction]["losses"] == [pytest.approx(loss, rel=1e-6)]  # the Trainer adds up in float32


def test_a_step_of_documents_on_two_ranks_is_that_of_the_documents_alone(two_ranks):
    check_trained(two_ranks, "document")


@pytest.mark.slow
def test_a_step_by_tokens_or_roots_on_two_ranks_is_that_of_the_documents_alone(tmp_path):
    on_ranks(on_one_rank, tmp_path, ["token", "sqrt"])

    for reduction in ("token", "sqrt"):
        check_trained(results(tmp_path), reduction)


def test_another_reduction_is_another_step(two_ranks):
    expected = step_alone(network().double(), DOCUMENTS, "sqrt")
    found = two_ranks[0]["trained"]["document"]["weights"]

    assert furthest_from(found, expected, weights_of(network().double())) > 1e-2


@pytest.mark.parametrize(
    ("dtype", "of_loss"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_a_micro_batch_without_a_target_has_a_loss_of_the_dtype_that_other_ranks_gather_with_it(dtype, of_loss):
    logits = torch.randn(3, 5, dtype=dtype, requires_grad=True)
    nothing = no_loss(logits)
    nothing.backward()

    assert (nothing.item(), nothing.dtype) == (0.0, of_loss)
    assert torch.equal(logits.grad, torch.zeros_like(logits))


# preferences

PAIRS = [
    ("You are", " told.", " old and"),
    ("a b c d", " e", " f g h i j"),
    ("What", " is 2 plus 3?", " no"),
    ("The cat sat on", " the mat", " a"),
    ("so", " it goes on and on", " it"),
]


def preferences(folder):
    """Five pairs in rows of unequal numbers of them."""
    records = [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for prompt, chosen, rejected in PAIRS]
    write_jsonl(folder / "pairs.jsonl", records)
    pack_sources(folder / "pairs.jsonl", folder / "rows", tokenizer=DEMO_TOKENIZER, capacity=32)
    return folder / "rows"


def policy_and_reference():
    """Two models, so that the loss is not ln 2 all over."""
    policy, reference = network().double(), network().double()
    with torch.no_grad():
        for number, parameter in enumerate(reference.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return seal(policy), seal(reference)


def preferred(folder, rows, loss_type, micro_batches):
    """One step of packed preferences over all rows, and the evaluation before it."""
    import trl

    from hermetic.integrations.trl import PREFERENCE_COLUMNS, PackedDPOTrainer

    policy, reference = policy_and_reference()
    config = trl.DPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=micro_batches,
        num_train_epochs=1,
        learning_rate=RATE,
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
        remove_unused_columns=False,
        beta=0.3,
        max_length=None,
        loss_type=loss_type,
    )
    data = PackedDataset(rows, columns=PREFERENCE_COLUMNS)
    trainer = PackedDPOTrainer(model=policy, ref_model=reference, args=config, train_dataset=data, eval_dataset=data)
    evaluated = trainer.evaluate()["eval_loss"]
    losses = losses_of(trainer)
    assert trainer.state.global_step == 1
    return {"evaluated": evaluated, "losses": losses, "weights": weights_of(policy).tolist()}


KINDS = ("sigmoid", "ipo")


def preferences_on_one_rank(rank, folder, rows):
    as_a_launcher_does(rank)
    num_rows = len(PackedDataset(rows))
    written(folder, rank, {kind: preferred(folder, rows, kind, -(-num_rows // 2)) for kind in KINDS})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL calls transformers by names that it deprecates
def test_packed_preferences_on_two_ranks_are_evaluated_and_trained_on_as_on_one(tmp_path):
    pytest.importorskip("trl", reason="trl is an optional extra")
    rows = preferences(tmp_path)
    numbers = [int(sum(row["roles"] == 1)) for row in PackedDataset(rows, columns=("roles",))]
    expected = {kind: preferred(tmp_path, rows, kind, len(numbers)) for kind in KINDS}
    on_ranks(preferences_on_one_rank, tmp_path, rows)
    before = weights_of(network().double())

    assert sum(numbers) == len(PAIRS)
    assert len(numbers) % 2 == 1  # a blank row on one of the ranks
    assert len(set(numbers)) > 1
    for found in results(tmp_path):
        for kind in KINDS:
            right = expected[kind]
            assert found[kind]["evaluated"] == pytest.approx(right["evaluated"], rel=BOUND)
            assert found[kind]["losses"] == [pytest.approx(right["losses"][0], rel=1e-6)]
            weights = torch.tensor(right["weights"], dtype=torch.float64)
            assert furthest_from(found[kind]["weights"], weights, before) < BOUND


# Lightning


def fitted(folder, reduction, accumulation, **devices):
    """Two epochs of Lightning's own trainer over the rows, and the evaluation after them."""
    from test_stack_lightning import Tuner, trainer_of

    from hermetic.integrations.lightning import PackedDataModule

    module = Tuner(sealed().double(), reduction)
    data = PackedDataModule(ROWS, rows_per_batch=1, evaluation=ROWS, seed=None, reduction=reduction)
    options = {"max_epochs": STEPS, "accumulate_grad_batches": accumulation, "num_sanity_val_steps": 0, **devices}
    trainer = trainer_of(folder, **options)
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == STEPS
    return {"evaluated": float(trainer.callback_metrics["val_loss"]), "weights": weights_of(module.model).tolist()}


def lightning_on_one_rank(rank, folder):
    as_a_launcher_does(rank)
    spread = {"devices": 2, "strategy": "ddp"}
    written(folder, rank, {reduction: fitted(folder, reduction, 3, **spread) for reduction in REDUCTIONS})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_lightning_on_two_ranks_takes_the_steps_and_has_the_evaluation_of_one(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="lightning is an optional extra")
    expected = {reduction: fitted(tmp_path, reduction, len(ROWS)) for reduction in REDUCTIONS}
    on_ranks(lightning_on_one_rank, tmp_path)
    before = weights_of(network().double())

    for found in results(tmp_path):
        for reduction in REDUCTIONS:
            right = torch.tensor(expected[reduction]["weights"], dtype=torch.float64)
            assert furthest_from(found[reduction]["weights"], right, before) < BOUND
            # Lightning adds up evaluations in float32
            assert found[reduction]["evaluated"] == pytest.approx(expected[reduction]["evaluated"], rel=1e-6)

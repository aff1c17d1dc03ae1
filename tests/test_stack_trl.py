"""TRL on packed rows: its own trainer on hermetic's folders and on its own packing, and DPO as TRL computes it."""

import copy

import numpy as np
import pytest
import torch
from data_helpers import DEMO_TOKENIZER, demo_tokenizer, write_jsonl
from feed_helpers import packed_folder
from stack_helpers import documents_of, losses_alone, network, reduced, sealed, weights_of
from train_helpers import tiny_network

from hermetic.data import PackedDataset, pack_sources
from hermetic.errors import LeakError, TrainError
from hermetic.integrations.loading import row_loader
from hermetic.integrations.rows import documents_of_row
from hermetic.integrations.transformers import LeakGuard
from hermetic.seal import seal

datasets = pytest.importorskip("datasets", reason="datasets is an optional extra")
trl = pytest.importorskip("trl", reason="trl is an optional extra")
from hermetic.integrations.trl import (  # noqa: E402 - TRL comes first, for it may be missing
    PREFERENCE_COLUMNS,
    PackedDPOTrainer,
    PackedSFTTrainer,
    PreferenceCollator,
)

# TRL and PEFT call transformers by names that it deprecates
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

COMMON = {
    "num_train_epochs": 1,
    "learning_rate": 0.1,
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def sft(model, folder, rows, *, kind=PackedSFTTrainer, extra=None, **changes):
    config = trl.SFTConfig(
        output_dir=str(folder),
        **{**COMMON, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 100, **changes},
    )
    return kind(
        model=model,
        args=config,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=demo_tokenizer(),
        **(extra or {}),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return packed_folder(tmp_path_factory.mktemp("packed"), [length % 9 + 2 for length in range(25)], capacity=20)


def test_trls_trainer_takes_a_packed_folder_and_its_step_is_that_of_the_documents_alone(folder, tmp_path):
    rows = PackedDataset(folder)
    documents = [document for row in rows for document in documents_of_row(row)]
    alone = losses_alone(network(), documents)
    losses = losses_of(sft(sealed(), tmp_path, rows, num_train_epochs=1))
    evaluated = sft(sealed(), tmp_path, rows, per_device_eval_batch_size=2).evaluate()["eval_loss"]
    by_documents = sft(sealed(), tmp_path, rows, extra={"loss_reduction": "document"}).evaluate()["eval_loss"]

    assert len(losses) == 1  # all rows are one step
    assert losses[0] == pytest.approx(reduced(alone, "token"), rel=1e-5)
    assert evaluated == pytest.approx(reduced(alone, "token"), rel=1e-5)
    assert by_documents == pytest.approx(reduced(alone, "document"), rel=1e-5)


def test_what_trl_packs_itself_is_each_document_once_and_evaluates_to_their_loss(tmp_path):
    documents = documents_of([5, 9, 3, 12, 7, 4, 11, 2, 8, 6])
    raw = datasets.Dataset.from_list(documents)
    options = {"packing": True, "max_length": 16, "per_device_eval_batch_size": 1}
    trainer = sft(sealed(), tmp_path, raw, **options)
    expected = reduced(losses_alone(network(), documents), "token")
    plain = sft(sealed(), tmp_path, raw, kind=trl.SFTTrainer, **options).evaluate()["eval_loss"]

    assert len(trainer.train_dataset) < len(documents)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(plain - expected) > 1e-3  # TRL's own: a mean of the batches' means
    assert losses_of(trainer)[0] == pytest.approx(expected, rel=1e-5)


def test_rows_that_are_packed_already_are_not_packed_again(folder, tmp_path):
    with pytest.raises(TrainError, match="args is an SFTConfig with packing=True"):
        sft(sealed(), tmp_path, PackedDataset(folder), packing=True)
    with pytest.raises(TrainError, match="args is None"):
        PackedSFTTrainer(model=sealed(), train_dataset=PackedDataset(folder))


def probed(trainer):
    """The verdicts of the guard that trained."""
    (found,) = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, LeakGuard)]
    trainer.train()
    return [report.verdict for report in found.reports]


def test_a_model_that_leaks_in_packed_rows_is_not_trained_by_trls_trainer_until_it_is_sealed(folder, tmp_path):
    leaking = tiny_network("gpt_oss").train()
    before = weights_of(leaking)
    with pytest.raises(LeakError, match="verdict 'leak'"):
        sft(leaking, tmp_path, PackedDataset(folder)).train()

    assert torch.equal(weights_of(leaking), before)
    assert probed(sft(seal(leaking), tmp_path, PackedDataset(folder))) == ["sealed"]


def test_what_trl_packs_is_probed_and_a_model_that_keeps_it_apart_needs_no_seal(tmp_path):
    raw = datasets.Dataset.from_list(documents_of([5, 9, 3, 12, 7, 4]))
    options = {"packing": True, "max_length": 16}
    with pytest.raises(LeakError):
        sft(tiny_network("gpt_oss").train(), tmp_path, raw, **options).train()
    assert probed(sft(network(), tmp_path, raw, **options)) == ["sealed"]


def test_what_trl_pads_has_no_neighbours_and_is_not_probed(tmp_path):
    raw = datasets.Dataset.from_list(documents_of([5, 9, 3]))
    trainer = sft(tiny_network("gpt_oss").train(), tmp_path, raw, packing=False, router_aux_loss_coef=0.0)
    assert not any(isinstance(callback, LeakGuard) for callback in trainer.callback_handler.callbacks)
    assert losses_of(trainer)[0] == pytest.approx(
        reduced(losses_alone(tiny_network("gpt_oss"), documents_of([5, 9, 3])), "token"), rel=1e-5
    )


def test_a_guard_of_ones_own_takes_the_place_of_the_trainers_and_none_is_there_where_none_is_wanted(folder, tmp_path):
    mine = LeakGuard(on_leak="report")
    trainer = sft(
        tiny_network("gpt_oss").train(), tmp_path, PackedDataset(folder), extra={"callbacks": [mine]}, max_steps=1
    )
    assert probed(trainer) == ["leak"]
    trainer = sft(sealed(), tmp_path, PackedDataset(folder), extra={"probe_first_batch": False})
    assert not any(isinstance(callback, LeakGuard) for callback in trainer.callback_handler.callbacks)


def test_packed_rows_that_trl_would_take_for_one_document_each_are_refused(tmp_path):
    packed = datasets.Dataset.from_list(
        [{"input_ids": [8, 9, 10], "labels": [-100, 9, -100], "seq_lengths": [2, 1]}] * 2
    )
    options = {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None}
    with pytest.raises(TrainError, match=r"has the column 'seq_lengths'.*expected padding_free=True"):
        sft(sealed(), tmp_path, packed, **options)
    assert probed(sft(sealed(), tmp_path, packed, padding_free=True, **options)) == ["sealed"]


PAIRS = [
    ("You are", " told.", " old and"),
    ("a b c d", " e", " f g h i j"),
    ("What", " is 2 plus 3?", " no"),
    ("The cat sat on", " the mat", " a"),
    ("so", " it goes on and on", " it"),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Five pairs in rows of unequal numbers of them, and the same for TRL."""
    home = tmp_path_factory.mktemp("pairs")
    records = [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for prompt, chosen, rejected in PAIRS]
    write_jsonl(home / "pairs.jsonl", records)
    pack_sources(home / "pairs.jsonl", home / "rows", tokenizer=DEMO_TOKENIZER, capacity=64)
    rows = PackedDataset(home / "rows", columns=PREFERENCE_COLUMNS)
    return rows, datasets.Dataset.from_list(records)


def reference():
    """Another model than the policy, so that the loss is not ln 2 all over."""
    torch.manual_seed(7)
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def dpo(folder, rows, kind, **changes):
    options = {**COMMON, "per_device_train_batch_size": 8, "beta": 0.3, "max_length": None}
    config = trl.DPOConfig(output_dir=str(folder), **{**options, **changes})
    packed = issubclass(kind, PackedDPOTrainer)
    made = seal if packed else copy.copy
    extra = {} if packed else {"processing_class": demo_tokenizer()}
    if packed:
        config.remove_unused_columns = False
    return kind(model=made(network()), ref_model=made(reference()), args=config, train_dataset=rows, **extra)


@pytest.mark.parametrize(
    ("loss_type", "micro_batches"),
    [
        ("sigmoid", 5),
        pytest.param("sigmoid", 1, marks=pytest.mark.slow),
        pytest.param("hinge", 1, marks=pytest.mark.slow),
        pytest.param("ipo", 1, marks=pytest.mark.slow),
    ],
)
def test_packed_dpo_has_the_loss_and_takes_the_step_of_trls_padded_dpo(loss_type, micro_batches, pairs, tmp_path):
    rows, records = pairs
    shape = {"per_device_train_batch_size": 1 if micro_batches > 1 else 8, "gradient_accumulation_steps": micro_batches}
    padded = dpo(tmp_path, records, trl.DPOTrainer, loss_type=loss_type, **shape)
    expected = losses_of(padded)
    packed = dpo(tmp_path, rows, PackedDPOTrainer, loss_type=loss_type, **shape)
    found = losses_of(packed)
    before, after = weights_of(network()), weights_of(padded.model)

    assert len(rows) < len(PAIRS)
    assert len(found) == len(expected) == 1
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    moved = float((after - before).abs().max())
    assert float((weights_of(packed.model) - after).abs().max()) < 1e-5 * moved + torch.finfo(torch.float32).eps
    assert moved > 1e-3


def test_preference_rows_of_unequal_numbers_of_pairs_weigh_each_pair_the_same(pairs, tmp_path):
    rows, _ = pairs
    numbers = [sum(role == 1 for role in row["roles"].tolist()) for row in rows]
    trainer = dpo(tmp_path, rows, PackedDPOTrainer)
    trainer.eval_dataset = rows
    losses = []
    for size in (1, 8):
        trainer.args.per_device_eval_batch_size = size
        losses.append(trainer.evaluate()["eval_loss"])

    assert len(set(numbers)) > 1
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_an_adapter_is_held_to_the_model_without_it(pairs, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is an optional extra")
    rows, _ = pairs
    model = peft.get_peft_model(network(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    config = trl.DPOConfig(output_dir=str(tmp_path), **COMMON, remove_unused_columns=False)
    trainer = PackedDPOTrainer(model=seal(model), args=config, train_dataset=rows, eval_dataset=rows)

    assert trainer.evaluate()["eval_loss"] == pytest.approx(0.6931472, rel=1e-6)  # ln 2: an adapter starts as nothing


def test_a_reference_that_leaks_or_is_missing_and_losses_that_are_not_there_are_refused(pairs, tmp_path):
    rows, _ = pairs
    config = trl.DPOConfig(output_dir=str(tmp_path), **COMMON, remove_unused_columns=False)
    with pytest.raises(TrainError, match="ref_model is not sealed"):
        PackedDPOTrainer(model=sealed(), ref_model=network(), args=config, train_dataset=rows)
    with pytest.raises(TrainError, match=r"^model is not sealed"):
        PackedDPOTrainer(model=network(), ref_model=sealed(), args=config, train_dataset=rows)
    with pytest.raises(TrainError, match="there is no ref_model"):
        PackedDPOTrainer(model=sealed(), args=config, train_dataset=rows)
    with pytest.raises(TrainError, match=r"ld_alpha is 0\.5, which packed preference training does not do"):
        dpo(tmp_path, rows, PackedDPOTrainer, ld_alpha=0.5)
    for name, value in (("loss_weights", [0.5]), ("router_aux_loss_coef", 0.01), ("activation_offloading", True)):
        with pytest.raises(TrainError, match=f"{name} is .*, which packed preference training does not do"):
            dpo(tmp_path, rows, PackedDPOTrainer, **{name: value})
    with pytest.raises(TrainError, match=r"label_smoothing_factor is 0\.1"):
        dpo(tmp_path, rows, PackedDPOTrainer, label_smoothing_factor=0.1)
    with pytest.raises(TrainError, match="loss_type is"):
        dpo(tmp_path, rows, PackedDPOTrainer, loss_type="robust")


def loss_of_equal_policies(rows, folder, **changes):
    noise = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    policy, held = (seal(tiny_network("gpt2", **noise)) for _ in range(2))
    config = trl.DPOConfig(output_dir=str(folder), **COMMON, remove_unused_columns=False, **changes)
    return losses_of(PackedDPOTrainer(model=policy.train(), ref_model=held, args=config, train_dataset=rows))[0]


def test_with_dropout_in_the_model_equal_policies_still_cost_ln_2_a_pair(pairs, tmp_path):
    rows, _ = pairs

    assert loss_of_equal_policies(rows, tmp_path) == pytest.approx(0.6931472, rel=1e-6)
    assert abs(loss_of_equal_policies(rows, tmp_path, disable_dropout=False) - 0.6931472) > 1e-3


def test_a_rank_without_a_row_of_pairs_runs_one_without_a_pair(pairs):
    rows, _ = pairs
    ranks = len(rows) + 1
    options = {"rows_per_batch": 1, "num_ranks": ranks, "seed": None, "collate_fn": PreferenceCollator()}
    steps = [list(row_loader(rows, rank=rank, **options)) for rank in range(ranks)]

    assert [len(step) for step in steps] == [1] * ranks
    assert [step[0]["roles"].tolist() == [0] for step in steps].count(True) == 1


def test_roles_are_those_of_the_documents_that_a_model_sees():
    row = {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, -100, 3, -100, 5], "seq_lengths": [0, 1, 2, 2]}
    made = PreferenceCollator()([{name: np.array(value) for name, value in (row | {"roles": [0, 0, 1, 2]}).items()}])

    assert len(made["roles"]) == len(made["cu_seq_lens_q"]) - 1 == 3
    assert made["roles"].tolist() == [0, 1, 2]
    with pytest.raises(TrainError, match="a row has 2 roles and 4 documents"):
        PreferenceCollator()([row | {"roles": [1, 2]}])
    with pytest.raises(TrainError, match="roles has dtype float64"):
        PreferenceCollator()([row | {"roles": [0.0, 0.0, 1.0, 2.0]}])


def test_trls_packing_that_forgets_where_documents_start_is_refused(tmp_path):
    raw = datasets.Dataset.from_list(documents_of([5, 9, 3]))
    with pytest.raises(TrainError, match="packing_strategy is 'wrapped'"):
        sft(sealed(), tmp_path, raw, packing=True, packing_strategy="wrapped", max_length=16)


def test_rows_without_roles_are_no_preferences():
    with pytest.raises(TrainError, match="a row has no 'roles'"):
        PreferenceCollator()([{"input_ids": [1, 2], "labels": [-100, 2], "seq_lengths": [2]}])
    row = {"input_ids": [1, 2, 3], "labels": [-100, 2, -100], "seq_lengths": [2, 1], "roles": [1, 2]}
    padded = PreferenceCollator(pad_to_multiple=8)([{name: np.array(value) for name, value in row.items()}])
    assert padded["roles"].tolist() == [1, 2, 0]
    assert len(padded["cu_seq_lens_q"]) == 4

"""Axolotl and LLaMA-Factory: their hooks and their batches, as of 0.19 and 0.9.5, in stand-ins; the real ones where
installed."""

import importlib
import importlib.util
import inspect
import itertools
import runpy
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml
from stack_helpers import documents_of, losses_alone, network, reduced, weights_of
from train_helpers import tiny_network
from transformers import Trainer, TrainingArguments

from hermetic.errors import LeakError, MissingDependencyError, ProbeError, SealError
from hermetic.integrations.transformers import LeakGuard, SealModel
from hermetic.seal import is_sealed, seal, unseal

EXAMPLES = Path(__file__).parents[1] / "examples" / "programs"
PLUGIN = "hermetic.integrations.axolotl.HermeticPlugin"
HOOKS = {
    "post_model_build": ("cfg", "model"),
    "pre_lora_load": ("cfg", "model"),
    "post_lora_load": ("cfg", "model"),
    "post_model_load": ("cfg", "model"),
    "get_trainer_cls": ("cfg",),
    "post_trainer_create": ("cfg", "trainer"),
    "get_collator_cls_and_kwargs": ("cfg", "is_eval"),
    "add_callbacks_pre_trainer": ("cfg", "model"),
    "add_callbacks_post_trainer": ("cfg", "trainer"),
    "post_train": ("cfg", "model"),
}
"""What Axolotl 0.19 calls on a plugin around a training run, and with which arguments."""

DOCUMENTS = documents_of([5, 9, 3, 12, 7, 4, 11, 2])
ROWS = [DOCUMENTS[:3], DOCUMENTS[3:5], DOCUMENTS[5:]]


def hook(name):
    """A method of the stand-in's: callbacks are lists, all else is nothing."""
    parameters = ", ".join(HOOKS[name])
    given = {}
    exec(f"def {name}(self, {parameters}): return {[] if 'callbacks' in name else None}", given)  # noqa: S102 - from the table
    return given[name]


@pytest.fixture
def axolotl(monkeypatch):
    """Axolotl's base class under its name, and the plugin made anew from it."""
    base = types.ModuleType("axolotl.integrations.base")
    base.BasePlugin = type("BasePlugin", (), {name: hook(name) for name in HOOKS})
    for name, module in (
        ("axolotl", types.ModuleType("axolotl")),
        ("axolotl.integrations", types.ModuleType("axolotl.integrations")),
        ("axolotl.integrations.base", base),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, PLUGIN.rpartition(".")[0], raising=False)
    return base


def loaded_plugin():
    """As Axolotl makes a plugin of its name in the configuration."""
    module, _, name = PLUGIN.rpartition(".")
    return getattr(importlib.import_module(module), name)()


def axolotl_batch(rows, *, mask, first_labels=False):
    """As its packing collator lays out rows: positions that restart, documents by number, labels as they were given."""
    longest = max(sum(len(document["input_ids"]) for document in row) for row in rows)
    columns = {"input_ids": [], "labels": [], "position_ids": [], "attention_mask": []}
    for row in rows:
        lengths = [len(document["input_ids"]) for document in row]
        pad = longest - sum(lengths)
        columns["input_ids"].append([token for document in row for token in document["input_ids"]] + [0] * pad)
        labels = [[ids[0] if first_labels else -100, *labels[1:]] for ids, labels in (d.values() for d in row)]
        columns["labels"].append(list(itertools.chain(*labels)) + [-100] * pad)
        columns["position_ids"].append([place for length in (*lengths, pad) for place in range(length)])
        numbers = [number + 1 for number, length in enumerate(lengths) for _ in range(length)]
        columns["attention_mask"].append(numbers + [0] * pad)
    if not mask:  # its default, sample_packing_drop_attention_mask
        del columns["attention_mask"]
    return {name: torch.tensor(column) for name, column in columns.items()}


def factory_batch(rows):
    """As LLaMA-Factory's ``packing: true`` does: a mask of ones, and every pad at position 0."""
    batch = axolotl_batch(rows, mask=True)
    for row, documents in enumerate(rows):
        batch["position_ids"][row, sum(len(document["input_ids"]) for document in documents) :] = 0
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def trainer_of(model, folder, collator, callbacks=()):
    """A Trainer as both programs make it: the model's own loss, one step over all rows."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=len(ROWS),
        learning_rate=0.1,
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        num_train_epochs=1,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    return Trainer(
        model=model, args=arguments, train_dataset=ROWS, data_collator=collator, callbacks=list(callbacks) or None
    )


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def run_of_axolotl(plugin, model, folder, *, before_training=lambda _: None, mask=False, **options):
    """The calls of a training run, in Axolotl's order, with a configuration that is a mapping."""
    cfg = {"sample_packing": True, "plugins": [PLUGIN]}
    plugin.post_model_build(cfg, model)
    plugin.post_lora_load(cfg, model)
    plugin.post_model_load(cfg, model)
    callbacks = plugin.add_callbacks_pre_trainer(cfg=cfg, model=model)
    trainer = trainer_of(model, folder, lambda rows: axolotl_batch(rows, mask=mask, **options), callbacks)
    plugin.post_trainer_create(cfg, trainer)
    for callback in filter(None, plugin.add_callbacks_post_trainer(cfg, trainer)):
        trainer.add_callback(callback)
    before_training(model)
    return trainer, losses_of(trainer)


def guards_of(trainer):
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, LeakGuard)]


def own_hooks(plugin):
    """The methods that a plugin brings, and their parameters."""
    return {
        name: tuple(inspect.signature(method).parameters)[1:]
        for name, method in vars(type(plugin)).items()
        if inspect.isfunction(method)
    }


@pytest.mark.parametrize("first_labels", [False, True])
def test_axolotls_model_is_sealed_and_guarded_and_its_step_is_that_of_the_documents_alone(
    axolotl, first_labels, tmp_path
):
    model = network()
    trainer, losses = run_of_axolotl(loaded_plugin(), model, tmp_path, first_labels=first_labels)

    assert isinstance(loaded_plugin(), axolotl.BasePlugin)
    assert is_sealed(model)
    assert losses == [pytest.approx(reduced(losses_alone(network(), DOCUMENTS), "token"), rel=1e-5)]
    assert [report.verdict for guard in guards_of(trainer) for report in guard.reports] == ["sealed"]


def test_labels_on_first_tokens_would_count_among_what_the_trainer_divides_by_and_do_not_where_documents_are_padded(
    tmp_path,
):
    def laid_out(rows):
        return losses_of(
            trainer_of(seal(network()), tmp_path, lambda _: axolotl_batch(rows, mask=False, first_labels=True))
        )

    alone = losses_alone(network(), DOCUMENTS)
    predicted, uncounted = sum(map(len, alone)), len(DOCUMENTS) - len(ROWS)  # each row's first token is never counted

    assert laid_out([[document] for document in DOCUMENTS]) == [pytest.approx(reduced(alone, "token"), rel=1e-5)]
    assert laid_out(ROWS) == [pytest.approx(reduced(alone, "token") * predicted / (predicted + uncounted), rel=1e-5)]


@pytest.mark.usefixtures("axolotl")
def test_batches_of_another_kind_pass_the_plugins_collator_as_they_are():
    trainer = types.SimpleNamespace(data_collator=lambda batch: batch, eval_data_collator=None)
    loaded_plugin().post_trainer_create({}, trainer)
    ids, planes = torch.tensor([[5, 6, 7]]), torch.zeros(3, 1, 3, dtype=torch.long)

    assert trainer.eval_data_collator is None
    for batch in ({"labels": ids}, {"labels": ids, "position_ids": planes}, {"position_ids": ids}):
        assert trainer.data_collator(dict(batch)) == batch
    packed = trainer.data_collator({"labels": ids, "position_ids": torch.tensor([[0, 1, 0]])})
    assert packed["labels"].tolist() == [[-100, 6, -100]]


@pytest.mark.usefixtures("axolotl")
def test_documents_by_number_in_a_mask_which_a_model_cannot_read_are_refused(tmp_path):
    with pytest.raises(ProbeError, match=r"attention_mask is 2 at slot 5 of row 0.* pass them as document_ids"):
        run_of_axolotl(loaded_plugin(), network(), tmp_path, mask=True)


def test_without_the_plugin_the_same_batch_under_its_numbered_mask_has_another_loss(tmp_path):
    (leaky,) = losses_of(trainer_of(network(), tmp_path, lambda rows: axolotl_batch(rows, mask=True)))

    assert abs(leaky - reduced(losses_alone(network(), DOCUMENTS), "token")) > 1e-3


@pytest.mark.usefixtures("axolotl")
def test_the_plugin_brings_only_hooks_that_axolotl_calls_with_the_arguments_it_calls_them_with():
    hooks = own_hooks(loaded_plugin())

    assert hooks
    assert hooks.items() <= HOOKS.items()


@pytest.mark.usefixtures("axolotl")
def test_an_axolotl_run_whose_model_cannot_be_sealed_ends_before_there_is_a_trainer(tmp_path):
    with pytest.raises(SealError):
        run_of_axolotl(loaded_plugin(), tiny_network("prophetnet"), tmp_path)


@pytest.mark.usefixtures("axolotl")
def test_an_axolotl_run_that_lost_its_seal_ends_before_its_first_step(tmp_path):
    model = network()
    before = weights_of(model)
    with pytest.raises(LeakError):
        run_of_axolotl(loaded_plugin(), model, tmp_path, mask=True, before_training=unseal)

    assert torch.equal(weights_of(model), before)


def test_without_axolotl_the_plugin_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "axolotl", None)
    monkeypatch.delitem(sys.modules, PLUGIN.rpartition(".")[0], raising=False)
    with pytest.raises(MissingDependencyError, match="needs the package 'axolotl'"):
        loaded_plugin()


def test_the_example_of_axolotl_packs_and_names_the_plugin():
    config = yaml.safe_load((EXAMPLES / "axolotl.yaml").read_text(encoding="utf-8"))

    assert config["sample_packing"] is True
    assert config["plugins"] == [PLUGIN]


def run_example_of_llama_factory(monkeypatch, folder, model):
    """The example's script, with a ``run_exp`` that does with its callbacks what LLaMA-Factory's does."""
    made = []

    def run_exp(args=None, callbacks=None):
        assert args is None  # the script's own arguments
        made.append(trainer_of(model, folder, factory_batch, callbacks))
        made[0].train()

    for name in ("llamafactory", "llamafactory.train", "llamafactory.train.tuner"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["llamafactory.train.tuner"].run_exp = run_exp
    runpy.run_path(str(EXAMPLES / "llamafactory.py"), run_name="__main__")
    return made[0]


def test_the_example_of_llama_factory_seals_and_guards_a_run_whose_step_is_that_of_the_documents_alone(
    monkeypatch, tmp_path
):
    model = network()
    trainer = run_example_of_llama_factory(monkeypatch, tmp_path, model)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert is_sealed(model)
    assert losses == [pytest.approx(reduced(losses_alone(network(), DOCUMENTS), "token"), rel=1e-5)]
    assert [report.verdict for guard in guards_of(trainer) for report in guard.reports] == ["sealed"]


def test_llama_factorys_packing_leaks_without_them_and_a_guard_alone_stops_it(tmp_path):
    model = network()
    before = weights_of(model)
    with pytest.raises(LeakError):
        losses_of(trainer_of(model, tmp_path, factory_batch, [LeakGuard()]))

    assert torch.equal(weights_of(model), before)


def test_llama_factorys_neat_packing_is_refused_by_a_sealed_model(tmp_path):
    def neat(rows):
        batch = axolotl_batch(rows, mask=True)
        numbers = batch["attention_mask"]
        same = (numbers[:, :, None] == numbers[:, None, :]) & (numbers != 0)[:, None, :]
        allowed = (same & torch.ones_like(same).tril())[:, None]
        return {**batch, "attention_mask": torch.where(allowed, 0.0, torch.finfo(torch.float32).min)}

    with pytest.raises(SealError, match="mask"):
        losses_of(trainer_of(network(), tmp_path, neat, [SealModel()]))


@pytest.mark.slow
@pytest.mark.stacks
@pytest.mark.filterwarnings("ignore")
def test_axolotls_own_manager_calls_these_hooks_and_its_own_collator_makes_these_batches(tmp_path):
    if importlib.util.find_spec("axolotl") is None:
        pytest.fail("this test needs axolotl: pip install --no-deps axolotl addict", pytrace=False)
    from axolotl.integrations.base import BasePlugin, PluginManager
    from axolotl.utils.collators.batching import V2BatchSamplerDataCollatorForSeq2Seq
    from data_helpers import demo_tokenizer

    theirs = {name: tuple(inspect.signature(getattr(BasePlugin, name)).parameters)[1:] for name in HOOKS}
    manager = PluginManager()
    manager.register(PLUGIN)
    collator = V2BatchSamplerDataCollatorForSeq2Seq(demo_tokenizer())
    documents = [
        [
            {
                "input_ids": document["input_ids"],
                "labels": document["labels"],
                "position_ids": list(range(len(document["input_ids"]))),
                "attention_mask": [1] * len(document["input_ids"]),
            }
            for document in row
        ]
        for row in ROWS
    ]
    found = collator(documents)
    expected = axolotl_batch(ROWS, mask=True)
    model = network()
    trainer, losses = run_of_axolotl(manager, model, tmp_path)

    assert theirs == HOOKS
    assert list(manager.plugins) == [PLUGIN]
    for name in ("labels", "position_ids", "attention_mask"):
        assert torch.equal(found[name], expected[name]), name
    assert losses == [pytest.approx(reduced(losses_alone(network(), DOCUMENTS), "token"), rel=1e-5)]
    assert [report.verdict for guard in guards_of(trainer) for report in guard.reports] == ["sealed"]

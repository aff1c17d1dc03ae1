"""Nothing is learned from a leak: a guard probes a loop's own first packed call before it is run."""

import copy
import importlib
import sys

import pytest
import torch
import transformers
from models import CALLS, packed, padded, tiny, with_ones
from torch.utils.data import Dataset

import hermetic
from hermetic.errors import LeakError, MissingDependencyError, NoBoundariesError, NotPackedError, ProbeError
from hermetic.integrations.transformers import LeakGuard

LENGTHS = (5, 6, 3, 4)


def batch_inputs(call="only_position_ids", lengths=LENGTHS, seed=0):
    batch = packed(lengths, seed=seed)
    return CALLS[call](batch) | {"labels": batch.labels[None]}


def hooks_of(model):
    return [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(model, batches):
    """A plain loop; returns its losses."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for inputs in batches:
        loss = model.train()(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_plain_loop_is_refused_before_its_first_step_and_again_until_the_guard_is_removed():
    model = tiny("llama")
    before = weights_of(model)
    guarded = hermetic.guard(model)
    for _ in range(2):
        with pytest.raises(LeakError, match=r"'leak'.*HM101"):
            train(model, [batch_inputs("all_ones_mask")])
    assert torch.equal(weights_of(model), before)
    assert [report.verdict for report in guarded.reports] == ["leak", "leak"]
    guarded.remove()
    assert hooks_of(model) == []
    assert len(train(model, [batch_inputs("all_ones_mask")])) == 1


def test_a_guard_that_a_refused_loop_has_left_stands_in_no_other_guards_way_once_the_model_is_sealed():
    model = tiny("llama")
    left = hermetic.guard(model)
    with pytest.raises(LeakError):
        train(model, [batch_inputs("all_ones_mask")])
    with hermetic.guard(hermetic.seal(model)) as guarded:
        assert len(train(model, [batch_inputs("all_ones_mask")])) == 1
    assert [report.verdict for report in guarded.reports] == ["sealed"]
    assert left.reports[-1].verdict == "sealed"


def test_a_guarded_loop_trains_to_the_same_bits():
    batches = [batch_inputs(seed=seed) for seed in range(3)]
    plain = tiny("llama", attention_dropout=0.2)
    guarded_model = copy.deepcopy(plain)
    torch.manual_seed(1)
    losses = train(plain, batches)
    torch.manual_seed(1)
    with hermetic.guard(guarded_model, every=2) as guarded:
        assert train(guarded_model, batches) == losses
    assert torch.equal(weights_of(plain), weights_of(guarded_model))
    assert [report.verdict for report in guarded.reports] == ["sealed", "sealed"]
    assert hooks_of(guarded_model) == []


def test_a_guard_that_reports_lets_a_leak_pass():
    model = tiny("llama")
    with hermetic.guard(model, on_leak="report") as guarded:
        assert len(train(model, [batch_inputs("all_ones_mask")] * 2)) == 2
    assert [report.verdict for report in guarded.reports] == ["leak"]


def test_a_guard_waits_for_the_first_packed_training_call():
    model = tiny("llama")
    with hermetic.guard(model) as guarded:
        model.eval()(**batch_inputs("all_ones_mask"))
        with torch.no_grad():
            model.train()(**batch_inputs("all_ones_mask"))
        assert guarded.unprobed is None
        train(model, [padded(packed(LENGTHS))])
        assert isinstance(guarded.unprobed, NotPackedError)
        assert guarded.reports == []
        with pytest.raises(LeakError):
            train(model, [batch_inputs("all_ones_mask")])
        assert guarded.unprobed is None


def test_a_call_that_does_not_say_where_documents_start_is_refused_unless_only_reports_are_wanted():
    inputs = {name: value for name, value in batch_inputs().items() if name != "position_ids"}
    with hermetic.guard(tiny("llama")) as guarded, pytest.raises(NoBoundariesError):
        train(guarded.model, [inputs])
    with hermetic.guard(tiny("llama"), on_leak="report") as guarded:
        train(guarded.model, [inputs])
    assert isinstance(guarded.unprobed, NoBoundariesError)


def test_the_guard_of_a_sealed_model_sees_the_call_before_the_seal_does():
    model = hermetic.seal(tiny("llama"))
    with hermetic.guard(model) as guarded:
        train(model, [batch_inputs("document_ids")])
    assert guarded.reports[0].verdict == "sealed"
    assert guarded.reports[0].note == ()


def test_a_compiled_model_is_guarded_from_inside_and_from_outside():
    model = tiny("llama")
    outside = torch.compile(model, backend="eager")
    for target in (model, outside):
        with hermetic.guard(target) as guarded, pytest.raises(LeakError):
            outside.train()(**batch_inputs("all_ones_mask"))
        assert len(guarded.reports) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every is 0; expected a positive number"), ({"on_leak": "warn"}, "expected 'raise' or 'report'")],
)
def test_options_that_no_guard_has_are_refused(options, message):
    for make in (lambda: hermetic.guard(tiny("llama"), **options), lambda: LeakGuard(**options)):
        with pytest.raises(ProbeError, match=message):
            make()


class PackedRows(Dataset):
    """One packed row an item, with an all-ones mask or without."""

    def __init__(self, count, *, ones):
        self.count, self.ones = count, ones

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        batch = packed(LENGTHS, seed=index)
        inputs = with_ones(batch) if self.ones else CALLS["only_position_ids"](batch)
        return {name: row[0] for name, row in inputs.items() if name != "use_cache"} | {"labels": batch.labels}


def trainer_of(model, folder, callback, *, ones=False, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        learning_rate=1e-2,
        **{"max_steps": 4, "save_strategy": "no", **options},
    )
    return transformers.Trainer(model, arguments, train_dataset=PackedRows(4, ones=ones), callbacks=[callback])


def test_a_trainer_is_stopped_before_its_first_step(tmp_path):
    model, callback = tiny("llama"), LeakGuard()
    before = weights_of(model)
    with pytest.raises(LeakError, match="HM101"):
        trainer_of(model, tmp_path, callback, ones=True).train()
    assert torch.equal(weights_of(model), before)
    hermetic.seal(model)
    trainer = trainer_of(model, tmp_path, callback, ones=True)
    trainer.train()
    assert trainer.state.global_step == 4
    assert [report.verdict for report in callback.reports] == ["leak", "sealed"]
    assert not torch.equal(weights_of(model), before)


def test_a_trainer_is_probed_again_every_so_many_steps_and_after_resuming(tmp_path):
    model, callback = tiny("llama"), LeakGuard(every=2, on_leak="report")
    trainer = trainer_of(model, tmp_path, callback, ones=True, save_strategy="steps", save_steps=3, max_steps=5)
    trainer.train()
    assert len(callback.reports) == 3  # before steps 1, 3 and 5
    assert callback.unprobed is None
    again = LeakGuard(on_leak="report")
    trainer_of(model, tmp_path, again, ones=True, max_steps=5).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-3")
    )
    assert [report.verdict for report in again.reports] == ["leak"]
    assert hooks_of(model) == []


def test_a_trainer_under_autocast_with_checkpointing_trains_to_the_same_bits(tmp_path):
    trained = []
    for callback in (LeakGuard(), transformers.TrainerCallback()):
        model = tiny("llama")
        trainer_of(model, tmp_path, callback, bf16=True, gradient_checkpointing=True, max_steps=2).train()
        trained.append(weights_of(model))
    assert torch.equal(*trained)


def test_trl_is_guarded_as_it_is(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"input_ids": packed((n,), seed=n).input_ids.tolist()} for n in (9, 7, 5, 8, 6)])
    for name, verdict in (("gpt_oss", "leak"), ("llama", "sealed")):
        callback, model = LeakGuard(), tiny(name)
        trainer = trl.SFTTrainer(
            model,
            trl.SFTConfig(
                output_dir=str(tmp_path),
                packing=True,
                max_length=20,
                max_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                dataset_kwargs={"skip_prepare_dataset": False},
            ),
            train_dataset=rows,
            callbacks=[callback],
            processing_class=_tokenizer(),
        )
        before = weights_of(model)
        if verdict == "leak":
            with pytest.raises(LeakError):
                trainer.train()
            assert torch.equal(weights_of(model), before)
        else:
            trainer.train()
        assert [report.verdict for report in callback.reports] == [verdict]


def _tokenizer():
    from data_helpers import demo_tokenizer

    return demo_tokenizer()


CALLBACK = '''
class Callback:
    """Lightning's callback interface, as far as a guard is concerned: every hook there is, doing nothing."""

    def on_train_start(self, trainer, pl_module): ...
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...
    def on_train_end(self, trainer, pl_module): ...
    def on_exception(self, trainer, pl_module, exception): ...


class LightningDataModule: ...


class callbacks:
    class GradientAccumulationScheduler(Callback): ...
'''


@pytest.fixture
def lightning(tmp_path, monkeypatch):
    """A stand-in for Lightning, and hermetic's module over it."""
    folder = tmp_path / "lightning" / "pytorch"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("hermetic.integrations.lightning")
    for name in ("lightning", "lightning.pytorch", "hermetic.integrations.lightning"):
        sys.modules.pop(name, None)


class Loop:
    """What Lightning's Trainer does around a LightningModule, as far as a guard is concerned."""

    def __init__(self, callback, accumulate=1):
        self.callback, self.accumulate, self.global_step = callback, accumulate, 0

    def fit(self, module, batches):
        self.callback.on_train_start(self, module)
        try:
            for index, batch in enumerate(batches):
                loss = module.train()(batch)
                loss.backward()
                self.global_step += (index + 1) % self.accumulate == 0
                self.callback.on_train_batch_end(self, module, loss, batch, index)
        except BaseException as error:
            self.callback.on_exception(self, module, error)
            raise
        self.callback.on_train_end(self, module)


class LanguageModule(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.network = model

    def forward(self, batch):
        return self.network(**batch).loss


def test_lightning_is_stopped_before_its_first_step(lightning):
    module = LanguageModule(tiny("llama"))
    callback = lightning.LeakGuard(model="network")
    with pytest.raises(LeakError, match="HM101"):
        Loop(callback).fit(module, [batch_inputs("all_ones_mask")])
    assert hooks_of(module) == []
    Loop(callback).fit(module, [batch_inputs()])
    assert [report.verdict for report in callback.reports] == ["leak", "sealed"]
    assert hooks_of(module) == []


def test_lightning_is_probed_again_every_so_many_steps(lightning):
    callback = lightning.LeakGuard(model="network", every=2, on_leak="report")
    Loop(callback, accumulate=2).fit(LanguageModule(tiny("llama")), [batch_inputs()] * 7)
    assert len(callback.reports) == 2  # before steps 1 and 3
    assert callback.unprobed is None


def test_a_lightning_module_without_such_a_model_is_refused_with_the_names_it_has(lightning):
    with pytest.raises(ProbeError, match=r"LanguageModule has no module 'model'.*\['network'\]"):
        Loop(lightning.LeakGuard()).fit(LanguageModule(tiny("llama")), [])


def test_without_lightning_the_extra_that_brings_it_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    sys.modules.pop("hermetic.integrations.lightning", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hermetic\[lightning\]'"):
        importlib.import_module("hermetic.integrations.lightning")

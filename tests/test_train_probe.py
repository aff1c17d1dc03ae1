"""Nothing is trained on a leak: the first batch is probed, as the Trainer collated it, before the first step."""

import itertools

import pytest
import torch
import transformers
from data_helpers import everything_under
from train_helpers import model_folder, packed_folder, tiny_network, token_file, weights_of

from hermetic.compare.arms import NaiveCollator
from hermetic.errors import LeakError, ProbeError, TrainError
from hermetic.integrations.transformers import PackedCollator, PaddedCollator, RowDataset, SealedTrainer
from hermetic.integrations.transformers import trainer as trainer_module
from hermetic.probe import probe_call
from hermetic.seal import seal
from hermetic.train import TrainSettings, fit, make_trainer, train


class RecordingCollator(PackedCollator):
    def __init__(self):
        super().__init__()
        self.batches = []

    def __call__(self, rows):
        self.batches.append(super().__call__(rows))
        return dict(self.batches[-1])


class OnesCollator(PackedCollator):
    """Adds the argument that makes a model look for no packed documents."""

    def __call__(self, rows):
        inputs = super().__call__(rows)
        return inputs | {"attention_mask": torch.ones_like(inputs["input_ids"])}


def test_the_batch_that_is_probed_is_the_batch_that_is_trained_first(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8, 11, 2, 6, 4], capacity=16)
    network, collator, calls = seal(tiny_network()), RecordingCollator(), []
    trainer = make_trainer(network, packed, TrainSettings(max_steps=1), collator=collator)

    def record(_module, _args, kwargs):
        calls.append((trainer.leak_report is None, kwargs["input_ids"]))

    network.register_forward_pre_hook(record, with_kwargs=True, prepend=True)
    trainer.train()
    first = collator.batches[0]
    trained_on = [ids for probing, ids in calls if not probing]
    probed_on = [ids for probing, ids in calls if probing]
    assert len(trained_on) == 1
    assert torch.equal(trained_on[0], first["input_ids"])
    assert any(torch.equal(ids, first["input_ids"]) for ids in probed_on)
    edges = first["cu_seq_lens_q"].tolist()
    assert list(trainer.leak_report.lengths) == [end - start for start, end in itertools.pairwise(edges)]


def test_lone_tokens_have_no_neighbour_to_probe(tmp_path):
    packed = packed_folder(tmp_path, [1, 1, 1], capacity=1)
    with pytest.warns(UserWarning, match="0 targets"):
        result = fit(seal(tiny_network()), packed, TrainSettings())
    assert result.report is None
    assert result.losses == (0.0, 0.0, 0.0)


def test_after_lone_tokens_the_first_packed_batch_is_probed_and_no_other(tmp_path, monkeypatch):
    documents = [[5], [6], [7, 8, 9], [5, 6]]
    rows = [[{"input_ids": ids}] for ids in documents[:2]] + [[{"input_ids": ids} for ids in documents[2:]]] * 3
    calls = []
    monkeypatch.setattr(trainer_module, "probe_call", lambda *called: calls.append(1) or probe_call(*called))
    arguments = {"report_to": [], "remove_unused_columns": False, "use_cpu": True, "per_device_train_batch_size": 1}
    trainer = SealedTrainer(
        model=seal(tiny_network()),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            **arguments,
            num_train_epochs=1,
            save_strategy="no",
            train_sampling_strategy="sequential",
        ),
        train_dataset=rows,
        data_collator=PackedCollator(),
    )
    with pytest.warns(UserWarning, match="0 targets"):
        trainer.train()
    assert trainer.leak_report.lengths == (3, 2)
    assert trainer.state.global_step == 5
    assert len(calls) == 3


def test_a_leak_stops_training_before_the_first_step(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8], capacity=16)
    network = tiny_network()
    before = weights_of(network)
    with pytest.raises(LeakError, match=r"^training did not start\..*leak") as caught:
        fit(network, packed, TrainSettings(learning_rate=1e-2), collator=OnesCollator())
    assert caught.value.code == "HE501"
    assert torch.equal(weights_of(network), before)


def test_the_same_arguments_do_not_leak_through_a_sealed_model(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8], capacity=16)
    result = fit(seal(tiny_network()), packed, TrainSettings(max_steps=1), collator=OnesCollator())
    assert result.report.verdict == "sealed"
    assert result.report.subject == "LlamaForCausalLM"


def test_a_batch_that_does_not_say_where_its_documents_start_is_not_trained_unprobed(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8], capacity=16)
    network = tiny_network()
    before = weights_of(network)
    with pytest.raises(TrainError, match=r"no cu_seq_lens_q.*PackedCollator.*probe_first_batch=False"):
        fit(network, packed, TrainSettings(), collator=NaiveCollator(restart=True))
    assert torch.equal(weights_of(network), before)


def test_padded_rows_have_nothing_to_probe(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 3], capacity=16)
    assert fit(tiny_network(), packed, TrainSettings(max_steps=1), pack=False).report is None


def test_arguments_that_the_probe_cannot_make_are_refused(tmp_path):
    class Tagged(PackedCollator):
        def __call__(self, rows):
            return super().__call__(rows) | {"pixel_values": torch.zeros(2, 3, 4, 4)}

    packed = packed_folder(tmp_path, [5, 9, 3], capacity=16)
    with pytest.raises(ProbeError, match=r"argument 'pixel_values' of shape \(2, 3, 4, 4\).*Leave it out"):
        fit(seal(tiny_network()), packed, TrainSettings(), collator=Tagged())


def test_one_process_with_several_gpus_is_refused(tmp_path):
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], remove_unused_columns=False)
    arguments._n_gpu = 2
    packed = packed_folder(tmp_path, [5, 9, 3], capacity=16)
    with pytest.raises(TrainError, match=r"one process sees 2 GPUs.*torchrun"):
        SealedTrainer(
            model=tiny_network(), args=arguments, train_dataset=RowDataset(packed), data_collator=PaddedCollator()
        )


class RowLeakConfig(transformers.LlamaConfig):
    model_type = "hermetic_test_row_leak"


class RowLeakForCausalLM(transformers.LlamaForCausalLM):
    """Leaks in rows of 33 to 99 tokens, which the rows of the seal's own checks (17 and 173) do not show."""

    config_class = RowLeakConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        if 32 < output.logits.shape[1] < 100:
            output.logits = output.logits + output.logits.mean(dim=1, keepdim=True)
        return output


@pytest.fixture
def leaky_model(tmp_path):
    transformers.AutoConfig.register(RowLeakConfig.model_type, RowLeakConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(RowLeakConfig, RowLeakForCausalLM, exist_ok=True)
    folder = model_folder(tmp_path / "model")
    network = RowLeakForCausalLM.from_pretrained(folder, config=RowLeakConfig.from_pretrained(folder))
    network.save_pretrained(folder)
    return folder


def test_a_leak_that_only_rows_of_this_length_show_is_found_and_nothing_is_written(tmp_path, leaky_model):
    data = token_file(tmp_path / "documents.jsonl", [20, 18, 15, 24, 30, 9])
    before = everything_under(tmp_path)
    with pytest.raises(LeakError, match="training did not start"):
        train(model=leaky_model, data=data, out=tmp_path / "tuned", capacity=64)
    assert everything_under(tmp_path) == before


def test_a_plain_trainer_isolates_restarting_positions_because_it_turns_the_cache_off(tmp_path):
    """Positions that restart and no mask: a leak with the default cache, none in the Trainer's call."""
    network = tiny_network()
    rows = [{"input_ids": list(range(20, 28)), "position_ids": [0, 1, 2, 0, 1, 2, 3, 4]}]
    rows[0]["labels"] = [-100, *rows[0]["input_ids"][1:3], -100, *rows[0]["input_ids"][4:]]
    inputs = {name: torch.tensor([values]) for name, values in rows[0].items() if name != "labels"}
    with torch.no_grad():
        alone = [network(input_ids=ids, use_cache=False).logits for ids in inputs["input_ids"].split([3, 5], dim=1)]

    def differences(logits):
        return [float((a - b).abs().max()) for a, b in zip(logits.detach().split([3, 5], dim=1), alone, strict=True)]

    by_hand = differences(network(**inputs).logits)
    seen = []
    network.register_forward_hook(lambda _module, _args, output: seen.append(output.logits))
    transformers.Trainer(
        model=network,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=rows,
    ).train()
    assert by_hand[0] < 1e-5
    assert by_hand[1] > 1
    assert len(seen) == 1
    assert max(differences(seen[0])) < 1e-5

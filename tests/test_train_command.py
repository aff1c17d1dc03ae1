"""``train`` from files to files: what it writes, what it refuses, and that a refusal leaves nothing behind."""

import json
import math
import shutil

import peft
import pytest
import torch
import transformers
from data_helpers import DEMO_TOKENIZER, everything_under, tokenizer_folder, write_jsonl
from train_helpers import model_folder, save_quietly, tiny_network, token_file, weights_of

from hermetic.data import pack_sources
from hermetic.demo.conversations import write_conversations
from hermetic.errors import DataError, DocumentTooLongError, PackedDataError, SealError, TrainError
from hermetic.train import METRICS_NAME, REPORT_NAME, TrainSettings, is_first_process, load_model, train

LENGTHS = [5, 9, 12, 3, 7, 8, 11, 2, 6, 4]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path):
    return token_file(tmp_path / "documents.jsonl", LENGTHS)


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_chats_become_a_trained_model_with_its_metrics_and_its_report(tmp_path, model):
    write_conversations(tmp_path / "chats.jsonl", count=20, seed=0)
    out = tmp_path / "deep" / "tuned"
    metrics = train(
        model=model, data=tmp_path / "chats.jsonl", out=out, capacity=512, settings=TrainSettings(learning_rate=1e-3)
    )
    assert metrics.documents == 20
    assert metrics.steps == metrics.rows == len(metrics.losses) > 1
    assert metrics.verdict == "sealed"
    assert metrics.utilization > 0.5
    assert all(math.isfinite(loss) for loss in metrics.losses)
    assert metrics.train_loss == metrics.losses[-1]
    written = json.loads((out / METRICS_NAME).read_text())
    assert written.pop("losses") == list(metrics.losses)
    assert written == {name: getattr(metrics, name) for name in written}
    report = json.loads((out / REPORT_NAME).read_text())
    assert report["verdict"] == "sealed"
    assert not torch.equal(weights_of(loaded(out)), weights_of(loaded(model)))
    prompt = transformers.AutoTokenizer.from_pretrained(out)("What is 2 plus 3?", return_tensors="pt")
    assert (
        loaded(out).generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] == prompt["input_ids"].shape[1] + 3
    )


def test_the_written_configuration_is_the_one_that_was_read(tmp_path, model, data):
    out = tmp_path / "tuned"
    train(model=model, data=data, out=out, capacity=16, settings=TrainSettings(max_steps=1))
    assert json.loads((out / "config.json").read_text()) == json.loads((model / "config.json").read_text())
    assert loaded(out).config.use_cache is True


def test_a_packed_folder_trains_as_the_file_that_it_was_packed_from(tmp_path, model, data):
    pack_sources(data, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=16)
    runs = [
        train(model=model, data=source, out=tmp_path / name, capacity=16)
        for name, source in (("from_file", data), ("from_folder", tmp_path / "packed"))
    ]
    assert runs[0].losses == runs[1].losses
    assert (tmp_path / "from_file" / "packed" / "manifest.json").is_file()
    assert not (tmp_path / "from_folder" / "packed").exists()


def test_the_padded_baseline_takes_the_same_losses_and_has_no_report(tmp_path, model, data):
    packed, padded = (
        train(model=model, data=data, out=tmp_path / str(pack), capacity=16, pack=pack) for pack in (True, False)
    )
    assert packed.losses == pytest.approx(padded.losses, rel=1e-5)
    assert padded.verdict is None
    assert not (tmp_path / "False" / REPORT_NAME).exists()
    assert padded.utilization < packed.utilization == 67 / (16 * packed.rows)


def test_adapters_alone_are_trained_and_written_and_load_again(tmp_path, model, data):
    out = tmp_path / "adapter"
    metrics = train(model=model, data=data, out=out, capacity=16, settings=TrainSettings(lora=True, learning_rate=1e-2))
    assert metrics.verdict == "sealed"
    assert (out / "adapter_model.safetensors").is_file()
    assert not (out / "model.safetensors").exists()
    tuned = peft.PeftModel.from_pretrained(loaded(model), out)
    ids = torch.arange(20, 30)[None]
    assert not torch.equal(tuned(input_ids=ids).logits, loaded(model)(input_ids=ids).logits)
    assert torch.equal(weights_of(tuned.unload()), weights_of(loaded(model)))


def test_a_second_half_of_losses_is_below_the_first_on_documents_seen_often(tmp_path, model):
    data = token_file(tmp_path / "documents.jsonl", [12] * 4)
    settings = TrainSettings(epochs=20.0, learning_rate=1e-2)
    losses = train(model=model, data=data, out=tmp_path / "tuned", capacity=24, settings=settings).losses
    assert len(losses) == 40
    assert sum(losses[20:]) < 0.5 * sum(losses[:20])


def test_what_is_done_is_told_and_nothing_else_is_printed_or_left_behind(tmp_path, model, data, capfd, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = []
    metrics = train(model=model, data=data, out=tmp_path / "tuned", capacity=16, on_stage=said.append)
    steps = [stage for stage in said if stage.startswith("step ")]
    packing = [stage for stage in said if stage.endswith(" documents")]
    assert packing[-1] == "writing rows, 10 documents"
    assert said[len(packing) : len(packing) + 2] == [f"loading {model}", "sealing"]
    assert said[-1] == f"writing {tmp_path / 'tuned'}"
    assert len(steps) == metrics.steps + 1
    assert f"loss {metrics.losses[-1]:.4f}" in steps[-1]
    train(model=model, data=data, out=tmp_path / "silent", capacity=16)
    assert capfd.readouterr() == ("", "")
    assert everything_under(elsewhere) == []


def test_the_first_process_writes(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert is_first_process()
    monkeypatch.setenv("RANK", "0")
    assert is_first_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_first_process()


# What cannot be trained is refused, and what was there before is all that is there after.


def refused(tmp_path, error, match, **arguments):
    before = everything_under(tmp_path)
    with pytest.raises(error, match=match) as caught:
        train(**{"out": tmp_path / "tuned", "capacity": 16} | arguments)
    assert everything_under(tmp_path) == before
    return caught.value


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path, model, data):
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "precious").write_text("kept")
    refused(
        tmp_path, PackedDataError, r"tuned is a folder that is not empty.*choose another name", model=model, data=data
    )
    assert (tmp_path / "tuned" / "precious").read_text() == "kept"


def test_rows_of_another_capacity_are_refused(tmp_path, model, data):
    pack_sources(data, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=32)
    match = r"packed for rows of 32 tokens and --capacity is 16.*Pass its capacity"
    refused(tmp_path, TrainError, match, model=model, data=tmp_path / "packed")


def test_rows_of_another_tokenizer_are_refused(tmp_path, model, data):
    other = tokenizer_folder(tmp_path / "other", chat_template="{{ messages[0]['content'] }}")
    shutil.rmtree(other / "chat_template.jinja", ignore_errors=True)
    pack_sources(data, tmp_path / "packed", tokenizer=other, capacity=16)
    match = r"tokenized with another tokenizer.*Pack the source again with this model's tokenizer"
    refused(tmp_path, TrainError, match, model=model, data=tmp_path / "packed")


def test_token_ids_that_the_model_does_not_embed_are_refused(tmp_path, data):
    folder = model_folder(tmp_path / "model", vocab_size=500)
    match = r"holds the token id \d+ and the model embeds 500 tokens.*expected ids below that"
    refused(tmp_path, TrainError, match, model=folder, data=data)


def test_a_model_that_is_not_there_is_refused(tmp_path, data):
    error = refused(tmp_path, DataError, "no tokenizer can be loaded", model=tmp_path / "nope", data=data)
    assert error.code == "HE600"


def test_a_tokenizer_without_a_model_is_refused(tmp_path, data):
    match = r"cannot be loaded as a causal language model .*expected a folder with a config and weights"
    refused(tmp_path, TrainError, match, model=DEMO_TOKENIZER, data=data)


def test_damaged_weights_are_refused(tmp_path, model, data):
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:1000])
    refused(tmp_path, TrainError, "cannot be loaded as a causal language model", model=broken, data=data)


def test_weights_that_are_not_numbers_are_refused(tmp_path, model, data):
    broken = shutil.copytree(model, tmp_path / "broken")
    network = tiny_network()
    with torch.no_grad():
        network.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    save_quietly(network, broken)
    match = r"weights of model\.layers\.1\.mlp\.up_proj\.weight are not all finite.*earlier one"
    for pack in (True, False):
        refused(tmp_path, TrainError, match, model=broken, data=data, pack=pack)


def test_a_model_that_cannot_be_sealed_is_refused_and_trains_padded(tmp_path):
    folder = model_folder(tmp_path / "model", "prophetnet")
    data = token_file(tmp_path / "documents.jsonl", LENGTHS)
    refused(tmp_path, SealError, r"ProphetNetForCausalLM cannot be sealed.*padded rows", model=folder, data=data)
    metrics = train(model=folder, data=data, out=tmp_path / "padded", capacity=16, pack=False)
    assert metrics.verdict is None


def test_a_document_longer_than_the_capacity_is_refused_and_cut_on_request(tmp_path, model, data):
    match = r"documents\.jsonl:2: document 1 has 9 tokens and a row holds 8"
    refused(tmp_path, DocumentTooLongError, match, model=model, data=data, capacity=8)
    metrics = train(model=model, data=data, out=tmp_path / "cut", capacity=8, on_overflow="truncate")
    assert metrics.tokens == sum(min(length, 8) for length in LENGTHS)


def test_a_source_without_documents_is_refused(tmp_path, model):
    write_jsonl(tmp_path / "empty.jsonl", [])
    refused(tmp_path, DataError, "is empty", model=model, data=tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("epochs", 0.0, r"^epochs is 0\.0; expected a finite number above 0$"),
        ("epochs", math.inf, "^epochs is inf; expected a finite"),
        ("learning_rate", -1e-5, "^learning_rate is -1e-05; expected a finite"),
        ("learning_rate", math.nan, "^learning_rate is nan; expected a finite"),
        ("rows_per_batch", 0, "^rows_per_batch is 0; expected a whole number of at least 1$"),
        ("rows_per_batch", 1.5, r"^rows_per_batch is 1\.5; expected a whole number"),
        ("accumulation_steps", -1, "^accumulation_steps is -1; expected a whole number"),
        ("max_steps", 0, "^max_steps is 0; expected a whole number"),
        ("max_steps", True, "^max_steps is True; expected a whole number"),
        ("seed", -1, "^seed is -1; expected a whole number from 0 to 4294967295$"),
        ("seed", 2**32, "^seed is 4294967296; expected a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(name, value, match):
    with pytest.raises(TrainError, match=match):
        TrainSettings(**{name: value})


def test_an_attention_implementation_can_be_chosen_when_a_model_is_loaded(model):
    assert load_model(model, attention="eager").config._attn_implementation == "eager"
    assert load_model(model).config._attn_implementation == "sdpa"

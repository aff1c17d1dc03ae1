"""Training a sealed model on packed rows is training it on each document alone, however it is called."""

import copy
import itertools

import peft
import pytest
import torch
from models import (
    CALLS,
    LENGTHS,
    SEALABLE,
    alone,
    calling,
    packed,
    packed_gradients,
    padded_gradients,
    relative_difference,
    tiny,
)

import hermetic

NO_DROPOUT = {"gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}}
"""What a family has to be told for two runs in training mode to be the same computation; the others have none."""

TARGETS = {"gpt2": ["c_attn"], "phi3": ["qkv_proj"]}

CHECKPOINTINGS = {"stored": None, "reentrant": True, "non_reentrant": False}
WRAPS = ("bare", "lora_after_sealing", "lora_before_sealing")


def wrapped_in_lora(name, model):
    torch.manual_seed(1)
    adapter = peft.LoraConfig(
        r=2,
        target_modules=TARGETS.get(name, ["q_proj", "v_proj"]),
        init_lora_weights=False,  # the usual zeros would make the adapter do nothing
        fan_in_fan_out=name == "gpt2",
    )
    return peft.get_peft_model(model, adapter)


def a_sealed_model_and_its_plain_twin(name, *, training=False, checkpointing="stored", wrap="bare"):
    plain = tiny(name, **NO_DROPOUT.get(name, {}))
    sealed = copy.deepcopy(plain)
    if wrap == "lora_after_sealing":
        hermetic.seal(sealed)
    if wrap != "bare":
        plain, sealed = wrapped_in_lora(name, plain), wrapped_in_lora(name, sealed)
    if wrap != "lora_after_sealing":
        hermetic.seal(sealed)
    reentrant = CHECKPOINTINGS[checkpointing]
    if reentrant is not None:
        sealed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        sealed.enable_input_require_grads()
    return sealed.train(training), plain.train(training)


def assert_packed_is_unpacked(sealed, plain, call):
    batch = packed()
    logits = batch.unpack(calling(sealed, call)(batch).detach())
    for document, (one, other) in enumerate(zip(logits, alone(plain, batch), strict=True)):
        assert float((one - other).abs().max()) <= 1e-5, f"document {document}"

    difference = relative_difference(packed_gradients(sealed, batch, call), padded_gradients(plain, batch))
    assert difference <= 1e-5


def assert_isolated(sealed, call):
    report = hermetic.probe(calling(sealed, call), lengths=LENGTHS)

    assert report.findings == ()
    assert report.verdict == "sealed"
    assert report.instruments[:3] == ("swap", "gradient", "solo")
    assert float(report.influence.max()) == 0.0
    assert float(report.gradients.clone().fill_diagonal_(0.0).max()) == 0.0
    assert float(report.gradients.diagonal().min()) > 0.0


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", SEALABLE)
def test_a_sealed_model_computes_on_packed_rows_what_it_computes_alone_however_it_is_called(name, call):
    sealed, plain = a_sealed_model_and_its_plain_twin(name)

    assert_packed_is_unpacked(sealed, plain, call)
    assert_isolated(sealed, call)


# Each way to train and each wrap once for a windowed and for a learned-position model; the calls take turns.
COVERING = [
    (name, training, checkpointing, wrap, call)
    for name in ("gemma3", "gpt2")
    for (training, checkpointing, wrap), call in zip(
        [
            (True, "stored", "bare"),
            (True, "reentrant", "bare"),
            (True, "non_reentrant", "bare"),
            (False, "stored", "lora_after_sealing"),
            (True, "reentrant", "lora_after_sealing"),
            (True, "non_reentrant", "lora_before_sealing"),
            (True, "reentrant", "lora_before_sealing"),
        ],
        itertools.cycle(CALLS),
        strict=False,
    )
]
EVERYTHING = list(itertools.product(SEALABLE, (False, True), CHECKPOINTINGS, WRAPS, CALLS))
SETUP = ("name", "training", "checkpointing", "wrap", "call")


@pytest.mark.parametrize(SETUP, COVERING)
def test_neither_training_nor_checkpointing_nor_lora_breaks_the_seal(name, training, checkpointing, wrap, call):
    sealed, plain = a_sealed_model_and_its_plain_twin(name, training=training, checkpointing=checkpointing, wrap=wrap)

    assert_packed_is_unpacked(sealed, plain, call)
    assert_isolated(sealed, call)


@pytest.mark.slow
@pytest.mark.parametrize(SETUP, EVERYTHING)
def test_no_combination_of_model_mode_checkpointing_wrap_and_call_breaks_the_seal(
    name, training, checkpointing, wrap, call
):
    sealed, plain = a_sealed_model_and_its_plain_twin(name, training=training, checkpointing=checkpointing, wrap=wrap)

    assert_packed_is_unpacked(sealed, plain, call)
    assert_isolated(sealed, call)


# What plain transformers makes of these calls. Positions alone, without mask and cache, it gets right.
LEAKS = {
    "all_ones_mask": {"HM101"},
    "default_cache": {"HM102"},
    "two_rows": {"HM101", "HM102"},
    "only_cu_seq_lens": {"HM108", "HM201"},
    "document_ids": {"HM108", "HM201"},
}


@pytest.mark.parametrize("call", LEAKS)
@pytest.mark.parametrize("name", SEALABLE)
def test_the_same_models_unsealed_leak_and_the_probe_says_through_what(name, call):
    report = hermetic.probe(calling(tiny(name), call), lengths=LENGTHS)

    assert report.verdict == "leak"
    assert float(report.influence.max()) > 1.0
    assert {finding.code for finding in report.findings} == {"HM100", *LEAKS[call]}
    assert "attn" in report.findings[0].where


@pytest.mark.parametrize("name", SEALABLE)
def test_positions_alone_without_a_cache_are_right_on_plain_transformers(name):
    assert_isolated(tiny(name), "only_position_ids")


@pytest.mark.parametrize("checkpointing", ["reentrant", "non_reentrant"])
@pytest.mark.parametrize("name", ["mistral", "llama4"])
def test_two_micro_batches_in_flight_keep_their_own_boundaries(name, checkpointing):
    sealed, plain = a_sealed_model_and_its_plain_twin(name, training=True, checkpointing=checkpointing)
    first, second = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = padded_gradients(plain, first) + padded_gradients(plain, second)

    logits = [calling(sealed, "all_ones_mask")(batch) for batch in (first, second)]
    for batch, each in zip((first, second), logits, strict=True):
        hermetic.packed_loss(each, batch, denominator=1).backward()
    found = torch.cat([p.grad.flatten() for p in sealed.parameters()])

    assert relative_difference(found, expected) <= 1e-5

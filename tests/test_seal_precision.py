"""What a model of low precision needs is looked for in float32: its own roundings hide none of it from the seal."""

import copy
import dataclasses

import pytest
import torch
from models import packed, tiny
from torch import nn

import hermetic
from hermetic.seal import is_sealed, judging

ISOLATION = ("swap", "gradient", "solo", "length-change", "causality")


def modules_of(model):
    return [(found.name, found.how, found.reason) for found in hermetic.seal_report(model).modules]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bigbird_pegasus", torch.bfloat16),
        pytest.param("bigbird_pegasus", torch.float16, marks=pytest.mark.slow),
        *(
            pytest.param(name, torch.bfloat16, marks=pytest.mark.slow)
            for name in ("bart", "blenderbot-small", "roberta", "lfm2", "bloom", "gemma2")
        ),
    ],
)
def test_a_model_of_low_precision_is_sealed_as_its_copy_in_float32_is(name, dtype):
    rounded = tiny(name).to(dtype)
    sealed = hermetic.seal(copy.deepcopy(rounded))

    assert modules_of(sealed) == modules_of(hermetic.seal(rounded.float()))
    assert hermetic.seal_report(sealed).judged_in == "float32"
    assert hermetic.probe(sealed, instruments=ISOLATION).verdict == "sealed"


def test_under_autocast_a_model_is_judged_in_float32_too():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sealed = hermetic.seal(tiny("bigbird_pegasus"))

    assert hermetic.seal_report(sealed).judged_in == "float32"
    assert modules_of(sealed) == modules_of(hermetic.seal(tiny("bigbird_pegasus")))


def test_positions_that_count_through_the_row_are_hidden_by_the_roundings_of_bfloat16(monkeypatch):
    monkeypatch.setattr(judging, "LOW", ())
    sealed = hermetic.seal(tiny("bigbird_pegasus").bfloat16())

    assert hermetic.seal_report(sealed).judged_in == "bfloat16"
    assert {how for _, how, _ in modules_of(sealed)} == {"interface"}
    assert hermetic.probe(sealed, instruments=ISOLATION).verdict == "distortion"


class OnlyBfloat16(nn.Linear):
    """As a kernel of others that refuses float32."""

    def forward(self, x):
        if x.dtype != torch.bfloat16:
            raise RuntimeError(f"expected bfloat16, got {x.dtype}")
        return super().forward(x)


def test_a_model_that_cannot_run_in_float32_is_judged_in_its_own_dtype_and_the_report_says_so():
    model = tiny("llama")
    model.model.layers[0].mlp.up_proj.__class__ = OnlyBfloat16

    assert hermetic.seal_report(hermetic.seal(model.bfloat16())).judged_in == "bfloat16"


def test_with_a_backend_that_cannot_run_in_float32_a_model_is_judged_in_its_own_dtype(monkeypatch):
    def half_only(device):
        found = judging_of(device)
        return found | {"sdpa": dataclasses.replace(found["sdpa"], backward=(torch.bfloat16,))}

    judging_of = judging.available_backends
    monkeypatch.setattr(judging, "available_backends", half_only)

    assert hermetic.seal_report(hermetic.seal(tiny("llama").bfloat16())).judged_in == "bfloat16"


def test_a_model_of_float32_is_judged_as_it_is():
    assert hermetic.seal_report(hermetic.seal(tiny("llama"))).judged_in == "float32"


def test_judging_leaves_no_trace_in_a_model_of_low_precision():
    plain = tiny("llama").bfloat16()
    model = hermetic.seal(copy.deepcopy(plain))
    batch = packed()

    with torch.no_grad():
        assert model(**batch.model_inputs()).logits.dtype == torch.bfloat16
        one = model(input_ids=batch.input_ids[None]).logits
        other = plain(input_ids=batch.input_ids[None]).logits
    assert torch.equal(one, other)
    for (name, tensor), (_, before) in zip(model.state_dict().items(), plain.state_dict().items(), strict=True):
        assert tensor.dtype == before.dtype, name
        assert torch.equal(tensor, before), name


@pytest.mark.parametrize("name", ["bloom", "gemma2"])
def test_unpacked_attention_gets_its_masks_in_the_models_own_dtype(name):
    model = hermetic.seal(tiny(name).bfloat16())
    found = {dtype for unpacked in unpacked_of(model) for dtype in unpacked.masks.values() if dtype.is_floating_point}

    assert found == {torch.bfloat16}
    assert model(**packed().model_inputs()).logits.isfinite().all()


def unpacked_of(model):
    return [vars(module)["forward"] for module in model.modules() if "forward" in vars(module)]


class OffInBfloat16(nn.Module):
    """As a kernel that is wrong in low precision only: it takes the mean over the row."""

    def forward(self, x):
        return x + x.mean(1, keepdim=True) if x.dtype == torch.bfloat16 else x


def test_a_leak_that_is_in_low_precision_only_is_refused():
    model = tiny("llama").bfloat16()
    model.model.layers[0].mlp = nn.Sequential(model.model.layers[0].mlp, OffInBfloat16())

    with pytest.raises(hermetic.HermeticError, match=r"mlp\.1"):
        hermetic.seal(model)
    assert not is_sealed(model)

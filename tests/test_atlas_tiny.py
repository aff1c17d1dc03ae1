"""A tiny model of every type that can be built here: it runs, it is small, and it has each kind of layer."""

import pytest
import torch
from transformers import AutoConfig

from hermetic.atlas import build_tiny, model_types
from hermetic.atlas.tiny import tiny_settings
from hermetic.errors import AtlasError

CANNOT = {
    "gemma3n": "timm",  # a package for its vision tower
    "gemma4_assistant": "must be 0",  # the default configuration refuses itself
    "gemma4_unified_assistant": "shared_kv_states",  # drafts from the states of another model
}


def kinds(config, name="layer_types"):
    return set(getattr(config, name, None) or [])


def why_not(model_type):
    try:
        build_tiny(model_type)
    except AtlasError as error:
        return str(error)
    return None


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mamba", "qwen3_5_text", "gpt_oss", "bloom", "lfm2"])
def test_a_tiny_model_runs_is_small_and_keeps_windows_below_the_length_of_documents(model_type):
    model = build_tiny(model_type)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert 2 <= model.config.num_hidden_layers <= 4
    assert getattr(model.config, "sliding_window", None) in {None, 4}


def test_weight_matrices_have_a_standard_deviation_with_which_a_leak_shows():
    matrices = torch.cat([p.detach().flatten() for p in build_tiny("llama").parameters() if p.ndim > 1])
    assert abs(float(matrices.std()) - 0.2) < 0.005


@pytest.mark.parametrize(
    "model_type", ["qwen3_next", "kimi_linear", "lfm3", "nemotron_h", "llama4_text", "gemma3_text"]
)
def test_every_kind_of_layer_of_the_default_configuration_is_in_the_tiny_one(model_type):
    default = AutoConfig.for_model(model_type)
    tiny = type(default)(**tiny_settings(default))
    assert len(kinds(default)) > 1, "nothing would be shown"
    assert kinds(tiny) == kinds(default)
    assert kinds(tiny, "mlp_layer_types") == kinds(default, "mlp_layer_types")


def test_a_seed_fixes_the_weights_and_the_callers_random_state_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, same, other = (build_tiny("llama", seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_the_attention_implementation_is_the_one_asked_for():
    for implementation in ("eager", "sdpa"):
        assert build_tiny("llama", attn_implementation=implementation).config._attn_implementation == implementation


def test_an_unknown_type_and_one_that_cannot_run_are_typed_errors_with_the_reason():
    with pytest.raises(AtlasError, match="model type is 'nothing'; expected one of"):
        build_tiny("nothing")
    with pytest.raises(AtlasError, match=r"gemma4_unified_assistant cannot be run here .*shared_kv_states"):
        build_tiny("gemma4_unified_assistant")


@pytest.mark.slow
def test_all_but_three_types_of_the_installed_transformers_build_and_run():
    reasons = {model_type: reason for model_type in model_types() if (reason := why_not(model_type))}
    assert set(reasons) == set(CANNOT), reasons
    assert all(CANNOT[model_type] in reason for model_type, reason in reasons.items())
    assert len(model_types()) > 190

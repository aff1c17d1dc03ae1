"""A model that cannot be made watertight is refused by name and left exactly as it was."""

import peft
import pytest
import torch
import transformers
from models import alone, calling, config_of, packed, tiny
from torch import nn

import hermetic
from hermetic.errors import BackendError, SealError
from hermetic.seal import is_sealed
from hermetic.seal.pattern import Pattern, recognise


@pytest.mark.parametrize(("name", "backend"), [("gpt_oss", "sdpa"), ("gpt_oss", "reference"), ("gemma2", "reference")])
def test_sinks_and_soft_caps_are_sealed_by_a_backend_that_has_them(name, backend):
    model = tiny(name)
    batch = packed()
    expected = alone(model, batch)
    hermetic.seal(model, backend=backend)

    assert hermetic.seal_report(model).backend == backend
    assert [(module.window, module.chunk) for module in hermetic.seal_report(model).modules] == [
        (4, None),
        (None, None),
    ]
    for one, other in zip(batch.unpack(calling(model, "all_ones_mask")(batch)), expected, strict=True):
        assert float((one - other).detach().abs().max()) <= 1e-5


def on_meta():
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config_of("llama"))


def with_nan():
    model = tiny("llama")
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    return model


def with_zero_head():
    model = tiny("llama")
    model.lm_head.weight.data.zero_()
    return model


def without_embedding():
    model = tiny("llama")
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens)
    return model


def with_batch_norm():
    """With statistics over all tokens of the batch, which evaluation mode does not show."""
    model = tiny("llama")
    model.model.layers[0].mlp.norm = nn.BatchNorm1d(48)
    return model


def with_a_head_that_mixes():
    """Adds the mean of the row to the logits of every token: outside of all that could be unpacked."""
    model = tiny("llama")
    model.lm_head.register_forward_hook(lambda _module, _args, output: output + output.mean(dim=1, keepdim=True))
    return model


def encoder_decoder():
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    return transformers.T5ForConditionalGeneration(config)


def with_prompt_tuning():
    return peft.get_peft_model(tiny("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def with_prefix_tuning():
    return peft.get_peft_model(tiny("llama"), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def of_type(model_type):
    return lambda: tiny(model_type)


def traces(model):
    """All that a seal could leave behind in a model."""
    return {
        name: (
            set(vars(module)),
            list(module._forward_pre_hooks),
            list(module._forward_hooks),
            vars(module).get("forward"),
            vars(module).get("_gradient_checkpointing_func"),
            module.training,
            [parameter.requires_grad for parameter in module.parameters()],
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )
        for name, module in model.named_modules()
    }


REFUSED = {
    "nothing of transformers": (
        lambda: nn.Linear(2, 2),
        "Linear holds no transformers model; .* call hermetic.packed_attention in the attention",
    ),
    "meta device": (on_meta, "LlamaForCausalLM has no weights yet .* meta device.*; load the weights first"),
    "nan": (with_nan, "LlamaForCausalLM: its seal cannot be measured: .* not finite; check the weights for NaN"),
    "zero head": (
        with_zero_head,
        "its seal cannot be measured: the gradient of every document at its own embeddings is exactly 0",
    ),
    "no embedding": (without_embedding, "LlamaForCausalLM has no torch.nn.Embedding as its input embedding"),
    "batch norm": (
        with_batch_norm,
        r"^model\.layers\.0\.mlp\.norm \(BatchNorm1d\) takes its statistics over all tokens of a batch in training",
    ),
    "mixing head": (
        with_a_head_that_mixes,
        r"cannot be sealed: lm_head \(Linear\) carries one document into another \(largest gradient across a seam",
    ),
    "too short": (lambda: tiny("gpt2", n_positions=16), r"forward failed on token ids alone \(IndexError"),
    "encoder and decoder": (
        encoder_decoder,
        "T5ForConditionalGeneration cannot be sealed: its forward failed on token ids alone",
    ),
    "prompt tuning": (
        with_prompt_tuning,
        r"made outputs of shape \(1, 20, 97\) from 17 tokens, so it adds tokens of its own",
    ),
    "prefix tuning": (with_prefix_tuning, r"PeftModelForCausalLM cannot be sealed: packed rows came with a cache"),
    "blt": (of_type("blt"), "BltForCausalLM cannot be sealed: BltCrossAttention of layer 0 got packed rows without"),
    "cpmant": (of_type("cpmant"), "CpmAntForCausalLM: its seal cannot be measured: the gradient instrument saw no"),
    "musicgen": (of_type("musicgen"), "MusicgenForCausalLM has no torch.nn.Embedding as its input embedding"),
    "prophetnet": (
        of_type("prophetnet"),
        r"prophetnet\.decoder\.layers\.0\.self_attn \(ProphetNetNgramSelfAttention\) carries one document into",
    ),
    "reformer": (
        of_type("reformer"),
        "ReformerModelWithLMHead cannot be sealed: its forward failed on packed rows",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")  # peft still passes it
def test_what_cannot_be_sealed_is_refused_with_a_message_of_its_own_and_left_exactly_as_it_was(make, message):
    model = make()
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable()
    model.train()
    before = traces(model)
    config = model.config.to_dict() if hasattr(model, "config") else None
    with pytest.raises(SealError, match=message):
        hermetic.seal(model)

    assert not is_sealed(model)
    assert traces(model) == before
    assert config is None or model.config.to_dict() == config


def test_a_refused_model_computes_what_it_computed_before_bit_for_bit():
    model = tiny("prophetnet")
    batch = packed((4, 3))
    before = alone(model, batch)
    with pytest.raises(SealError):
        hermetic.seal(model)

    assert all(torch.equal(a, b) for a, b in zip(alone(model, batch), before, strict=True))


def test_an_unknown_backend_is_refused_before_anything_is_touched():
    model = tiny("llama")
    with pytest.raises(BackendError, match="backend is 'fast'; expected one of 'reference', 'sdpa'"):
        hermetic.seal(model, backend="fast")

    assert not is_sealed(model)


def test_an_unsealed_model_has_no_report():
    with pytest.raises(SealError, match=r"LlamaForCausalLM is not sealed, .* call hermetic.seal\(model\) first"):
        hermetic.seal_report(tiny("llama"))


def test_another_attention_implementation_set_after_sealing_is_refused_at_the_next_forward():
    model = hermetic.seal(tiny("llama"))
    model.set_attn_implementation("eager")
    message = (
        r"was 'hermetic_sdpa_over_sdpa' when it was sealed and is 'eager' now, .* call hermetic.seal\(model\) again"
    )
    with pytest.raises(SealError, match=message):
        calling(model, "document_ids")(packed())


def test_prompt_tuning_around_a_sealed_model_cannot_shift_the_boundaries_unnoticed():
    model = peft.get_peft_model(
        hermetic.seal(tiny("llama")), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    batch = packed((3, 2))
    with pytest.raises(hermetic.HermeticError, match="cu_seq_lens_q ends at 5 and the rows have 8 slots"):
        model(input_ids=batch.input_ids[None], cu_seq_lens_q=batch.boundaries.cu_seqlens)
    with pytest.raises(
        hermetic.HermeticError, match=r"document_ids has shape \(5,\); expected one id for each of 1 x 8"
    ):
        model(input_ids=batch.input_ids[None], document_ids=batch.boundaries.document_ids)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_prefix_tuning_around_a_sealed_model_is_refused(name):
    model = peft.get_peft_model(
        hermetic.seal(tiny(name)), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    with pytest.raises(SealError, match=r"Leave the cache out \(prefix tuning passes one: it cannot be packed\)"):
        calling(model, "document_ids")(packed())


def a_mask_function(rule):
    return lambda _batch, _head, query, key: rule(query, key)


def test_a_mask_function_is_recognised_by_what_it_allows():
    def named(rule, local_size=None):
        return recognise(a_mask_function(rule), local_size=local_size, longest=50, device=torch.device("cpu"))

    assert named(lambda q, k: q >= k) == Pattern()
    assert named(lambda q, k: (q >= k) & (q - k < 4), 4) == Pattern(window=4)
    assert named(lambda q, k: (q >= k) & (q // 4 == k // 4), 4) == Pattern(chunk=4)
    assert named(lambda q, k: (q >= k) | (q <= k)) == Pattern(causal=False)


@pytest.mark.parametrize(
    ("rule", "local_size"),
    [
        (lambda q, k: (q >= k) & (q - k < 5), 4),
        (lambda q, k: (q - k).abs() < 4, 4),
        (lambda q, k: (q >= k) & ((q - k < 4) | (k == 0)), 4),
        (lambda q, k: (q >= k) & (q - k < 20), None),
    ],
)
def test_a_mask_function_of_no_known_pattern_is_refused_and_never_approximated(rule, local_size):
    with pytest.raises(SealError, match="is none of: causal, causal with a window, causal in chunks, bidirectional"):
        recognise(a_mask_function(rule), local_size=local_size, longest=50, device=torch.device("cpu"))

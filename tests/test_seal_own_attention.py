"""Models that look for attention by name, choose keys, or keep state: alone and packed as they were before the seal."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from hermetic import probe, seal, seal_report, unseal
from hermetic.atlas import build_tiny
from hermetic.errors import SealError
from hermetic.seal.interface import register
from hermetic.seal.mixers import Mixers
from hermetic.seal.replay import Call, axes_of, chooses_tokens
from hermetic.seal.trial import Trial
from hermetic.seal.unpack import remove_all

IDS = torch.randint(3, 128, (1, 13), generator=torch.Generator().manual_seed(3))
BY_NAME = [("falcon", "sdpa"), ("deepseek_v32", "eager"), ("deepseek_v32", "sdpa")]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize(("model_type", "implementation"), BY_NAME)
def test_a_document_alone_gets_bit_for_bit_what_it_got_before_the_seal(model_type, implementation):
    model = build_tiny(model_type, attn_implementation=implementation)
    before = logits(model)
    seal(model)
    assert torch.equal(logits(model), before)
    assert model.config._attn_implementation == implementation
    assert {module.how for module in seal_report(model).modules} == {"unpack"}
    assert probe(model).verdict == "sealed"
    assert torch.equal(logits(unseal(model)), before)


def test_under_hermetics_name_such_a_model_computes_something_else_so_there_is_something_to_notice():
    model = build_tiny("falcon", attn_implementation="sdpa")
    before = logits(model)
    model.config._attn_implementation = register("sdpa", "sdpa")
    assert float((logits(model) - before).abs().max()) > 1


def test_another_implementation_set_after_sealing_is_refused_there_too():
    model = seal(build_tiny("falcon", attn_implementation="sdpa"))
    model.config._attn_implementation = "eager"
    with pytest.raises(SealError, match="was 'sdpa' when it was sealed and is 'eager' now"):
        logits(model)


def test_indices_of_chosen_keys_are_refused_however_few_tokens_there_are():
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    seal(model)
    with pytest.raises(SealError, match="LlamaAttention of layer 0 chooses the keys of each query itself"):
        model(input_ids=torch.arange(4)[None], indices=torch.zeros(1, 4, 1), use_cache=False)


class Best(nn.Module):
    """Adds up the two best of what is asked for: tokens, or channels."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        return x + x.topk(2, dim=self.axis).values.sum(self.axis, keepdim=True)


@pytest.mark.parametrize(("axis", "expected"), [(1, True), (2, False), (-1, False)])
def test_a_choice_among_tokens_is_told_from_one_among_channels(axis, expected):
    arguments = {0: torch.randn(1, 10, 4, generator=torch.Generator().manual_seed(0))}
    call = Call(module=Best(axis), arguments=arguments, output=None)
    assert chooses_tokens(call, axes_of(arguments, 10), 10) is expected


def test_a_parameter_that_a_module_hands_on_is_added_and_trained_in_packed_rows():
    model = build_tiny("gpt_neox_japanese")
    bias = model.gpt_neox_japanese.layers[-1].attention.dense_bias
    nn.init.normal_(bias)
    seal(model)
    assert probe(model).verdict == "sealed"
    document_ids = torch.tensor([0] * 5 + [1] * 8)
    model(input_ids=IDS, document_ids=document_ids).logits.sum().backward()
    assert float(bias.grad.abs().max()) > 0


def scaled_llama():
    """Rotary frequencies that grow with the longest document seen, from 8 tokens on."""
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=8, rope_parameters=rope, **sizes))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.mark.parametrize("lengths", [(11, 13, 6, 1), (13, 11, 2), (9, 30, 16, 3)])
def test_frequencies_that_one_document_leaves_behind_are_not_there_for_the_next(lengths):
    assert probe(scaled_llama(), lengths=lengths).verdict == "row_length_dependent"
    model = seal(scaled_llama())
    assert [module.kind for module in seal_report(model).modules if module.how == "unpack"] == ["LlamaRotaryEmbedding"]
    assert probe(model, lengths=lengths).verdict == "sealed"


def test_a_module_around_one_that_needs_equal_lengths_needs_them_too():
    model = scaled_llama()
    mixers = Mixers(Trial(model), model, lambda _module: "sdpa")
    mixers.uncouple_lengths()
    mixers.unpack_whole()
    assert [(found.name, found.exact) for found in mixers.installed.values()] == [("model", True)]
    remove_all(mixers.installed)

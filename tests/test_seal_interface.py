"""The seams of transformers that a seal uses, each of its refusals, and models inside models."""

import copy
import sys

import pytest
import torch
import transformers
from models import alone, calling, config_of, packed, tiny
from seal_helpers import assert_packed_is_alone
from torch import nn

import hermetic
from hermetic.errors import MissingDependencyError, SealError
from hermetic.seal.channel import PackedForward
from hermetic.seal.interface import _original_attention, _ticket, entry_name


def with_changed_arguments(**changes):
    """A Llama whose first attention layer is handed other arguments than its model prepared."""
    model = tiny("llama")
    layer = model.model.layers[0].self_attn
    layer.register_forward_pre_hook(lambda _module, args, kwargs: (args, {**kwargs, **changes}), with_kwargs=True)
    return model


def test_a_layer_that_goes_around_the_interface_is_unpacked_and_the_others_are_not():
    plain = with_changed_arguments(attention_mask=None)
    model = hermetic.seal(copy.deepcopy(plain))

    hows = [(module.name, module.how) for module in hermetic.seal_report(model).modules]
    assert hows == [("model.layers.0.self_attn", "unpack"), ("model.layers.1.self_attn", "interface")]
    assert_packed_is_alone(model, plain)


def test_a_position_bias_on_the_scores_is_refused_by_name():
    message = "LlamaAttention of layer 0 adds a position bias to its scores"
    with pytest.raises(SealError, match=message):
        hermetic.seal(with_changed_arguments(position_bias=torch.zeros(1)))


def asked_for(**changes):
    request = {"batch_size": 1, "q_length": 8, "kv_length": 8, "device": "cpu", "mask_function": None}
    return _ticket(PackedForward(lengths=(3, 5), num_rows=1, num_slots=8), {**request, **changes})


def test_a_request_for_the_plain_causal_mask_is_answered_with_the_boundaries():
    ticket = asked_for(mask_function=lambda _batch, _head, query, key: query >= key)

    assert (ticket.lengths, ticket.causal, ticket.window, ticket.chunk) == ((3, 5), True, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_length": 11}, r"asked for a mask over \(rows, queries, keys\) \(1, 8, 11\) in a batch of \(1, 8, 8\)"),
        ({"use_vmap": True}, "the model lays a mask of its own over the usual one"),
    ],
    ids=str,
)
def test_a_request_for_another_mask_is_refused(changes, message):
    with pytest.raises(SealError, match=message):
        asked_for(**changes)


def test_eager_attention_is_found_beside_the_class_of_the_layer_or_refused():
    layer = tiny("llama").model.layers[0].self_attn
    beside = sys.modules[type(layer).__module__].eager_attention_forward

    assert _original_attention(layer, "eager") is beside
    with pytest.raises(SealError, match="Linear has no eager_attention_forward beside its class; load the model with"):
        _original_attention(nn.Linear(1, 1), "eager")


def test_no_entry_is_named_so_that_transformers_takes_it_for_a_flash_kernel():
    assert entry_name("sdpa", "flash_attention_2") == "hermetic_sdpa_over_fa_attention_2"


def test_without_transformers_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(MissingDependencyError, match=r"sealing needs transformers, .* pip install 'hermetic\[hf\]'"):
        hermetic.seal(nn.Linear(1, 1))


def vision_language():
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
    }
    text = config_of("llama").to_dict()
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=96)
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def test_a_model_of_models_is_sealed_throughout_and_unsealed_without_a_trace():
    model = vision_language()
    batch = packed(vocabulary=96)
    expected = alone(model, batch)
    hermetic.seal(model)

    names = [module.name for module in hermetic.seal_report(model).modules]
    assert names == ["model.language_model.layers.0.self_attn", "model.language_model.layers.1.self_attn"]
    for one, other in zip(batch.unpack(calling(model, "all_ones_mask")(batch)), expected, strict=True):
        assert (one - other).abs().max().item() <= 1e-5
    hermetic.unseal(model)
    for config in (model.config, model.config.text_config, model.config.vision_config):
        assert config._attn_implementation == "sdpa"


class Terse(transformers.LlamaForCausalLM):
    """A head that takes few arguments, as remote code often does."""

    def forward(self, input_ids, labels=None):
        logits = self.lm_head(self.model(input_ids).last_hidden_state)
        loss = None if labels is None else nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())
        return transformers.modeling_outputs.CausalLMOutput(loss=loss, logits=logits)


def test_a_forward_with_few_arguments_gets_no_others():
    torch.manual_seed(0)
    model = Terse(config_of("llama")).eval()
    batch = packed()
    row, ids = batch.input_ids[None], batch.boundaries.document_ids
    expected = [model(part[None]).logits[0] for part in batch.unpack(batch.input_ids)]
    hermetic.seal(model)

    for one, other in zip(batch.unpack(model(input_ids=row, document_ids=ids).logits), expected, strict=True):
        assert (one - other).abs().max().item() <= 1e-5


def test_labels_that_the_seal_cannot_match_with_tokens_are_refused_for_a_loss_of_the_models_own_too():
    torch.manual_seed(0)
    model = hermetic.seal(Terse(config_of("llama")).eval())
    batch = packed()
    row, ids = batch.input_ids[None], batch.boundaries.document_ids

    with pytest.raises(SealError, match=r"labels has shape \(1, 35\); expected one label for each of 1 x 36 tokens"):
        model(input_ids=row, document_ids=ids, labels=row[:, 1:])

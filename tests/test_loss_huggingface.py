"""A model's loss from its last hidden states is that of its logits, whatever the model does to them, or an error."""

import pytest
import torch
from models import packed, tiny
from torch import nn

import hermetic
from hermetic.errors import LossError
from hermetic.loss import (
    document_log_probs,
    linear_head,
    log_probs_without_logits,
    loss_without_logits,
    packed_loss,
)

BATCH = packed((5, 7, 1, 4), pad_to_multiple=8)


def sealed(name, **changes):
    return hermetic.seal(tiny(name, **changes).double())


def logits_of(model):
    inputs = {name: value for name, value in BATCH.model_inputs().items() if name != "labels"}
    return model(**inputs).logits


def with_gradients(model, value):
    model.zero_grad()
    value.sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return value.detach(), gradients


@pytest.mark.parametrize(
    ("name", "scale", "softcap"),
    [
        ("llama", 1.0, None),
        ("gpt2", 1.0, None),
        ("gemma2", 1.0, 30.0),
        ("nanochat", 1.0, 15.0),
        ("cohere2", 0.0625, None),
        ("bamba", 1.0, None),
    ],
)
def test_loss_log_probs_and_gradients_are_those_of_the_models_own_logits(name, scale, softcap):
    model = sealed(name)
    head = linear_head(model, BATCH)
    assert (head.logit_scale, head.logit_softcap) == (scale, softcap)

    for direct, without in ((packed_loss, loss_without_logits), (document_log_probs, log_probs_without_logits)):
        value, gradients = with_gradients(model, direct(logits_of(model), BATCH))
        found, found_gradients = with_gradients(model, without(model, BATCH, chunk_tokens=3))
        torch.testing.assert_close(found, value, rtol=1e-6, atol=0)
        assert found_gradients.keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            limit = 1e-6 * float(gradient.abs().max())
            torch.testing.assert_close(found_gradients[parameter], gradient, rtol=0, atol=limit)


def test_a_scale_and_a_cap_of_any_size_are_found_exactly():
    granite = tiny("granite")
    granite.config.logits_scaling = 13.7
    gemma = tiny("gemma2", final_logit_softcapping=0.3)

    assert linear_head(hermetic.seal(granite), BATCH).logit_scale == pytest.approx(1 / 13.7, rel=1e-15)
    assert linear_head(hermetic.seal(gemma), BATCH).logit_softcap == pytest.approx(0.3, rel=1e-15)


def test_the_output_layer_is_not_multiplied_and_is_itself_again_afterwards():
    model = sealed("llama")
    layer = model.get_output_embeddings()
    before = dict(vars(layer))
    shapes = []
    handle = layer.register_forward_hook(lambda _module, _given, out: shapes.append(tuple(out.shape)))
    loss_without_logits(model, BATCH)
    logits_of(model)
    handle.remove()

    assert shapes == [(1, 8, 97), (1, BATCH.num_slots, 97)]
    assert dict(vars(layer)) == before


def test_options_reach_the_loss():
    model = sealed("llama")
    options = {"reduction": "sqrt", "denominator": 5.0, "label_smoothing": 0.1, "z_loss": 0.01}
    direct = packed_loss(logits_of(model), BATCH, **options)

    assert loss_without_logits(model, BATCH, **options).item() == pytest.approx(direct.item(), rel=1e-6)
    with pytest.raises(LossError, match="backend 'liger' cannot do tensors on the cpu"):
        loss_without_logits(model, BATCH, backend="liger")


def patched(change):
    """A Llama whose forward does something more to its logits."""
    model = sealed("llama")
    forward = model.forward

    def changed(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = change(out.logits)
        return out

    model.forward = changed
    return model


def masked_at(entry):
    return lambda logits: logits.index_fill(2, torch.tensor([entry]), -torch.inf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (masked_at(0), "at entry 0 of the vocabulary"),
        (masked_at(96), "at entry 96 of the vocabulary 9.09495e-13 became -inf"),
        (lambda logits: logits + 1, "at entry 0 of the vocabulary"),
        (lambda logits: logits.log_softmax(-1), "does more to its logits"),
        (lambda logits: logits.clamp(-20, 20), "at entry 0 of the vocabulary"),
        (lambda logits: logits[:, -1], r"\[1, 8, 97\] numbers became \[1, 97\] of torch.float64"),
        (lambda logits: logits.bfloat16(), r"became \[1, 8, 97\] of torch.bfloat16"),
    ],
)
def test_what_a_scale_and_a_cap_do_not_describe_is_refused(change, message):
    with pytest.raises(LossError, match=f"{message}.*use packed_loss on the logits"):
        loss_without_logits(patched(change), BATCH)


def test_a_change_that_a_scale_and_a_cap_describe_is_measured():
    model = patched(lambda logits: 5.0 * torch.tanh(0.25 * logits / 5.0))
    head = linear_head(model, BATCH)

    assert (head.logit_scale, head.logit_softcap) == (pytest.approx(0.25, rel=1e-12), 5.0)
    assert loss_without_logits(model, BATCH).item() == pytest.approx(packed_loss(logits_of(model), BATCH).item())


class Adapted(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_subclass(model):
    model.lm_head = Adapted(32, 97, bias=False)


def with_replaced_forward(model):
    model.lm_head.forward = lambda x: 2 * x


def without_layer(model):
    model.get_output_embeddings = lambda: None


@pytest.mark.parametrize(
    ("spoil", "found"), [(with_subclass, "Adapted"), (with_replaced_forward, "Linear"), (without_layer, "NoneType")]
)
def test_an_output_layer_that_computes_something_else_is_refused(spoil, found):
    model = sealed("llama")
    spoil(model)
    with pytest.raises(LossError, match=f"the output layer of LlamaForCausalLM is {found}, expected a plain"):
        loss_without_logits(model, BATCH)


def test_a_module_without_an_output_layer_is_refused():
    with pytest.raises(LossError, match="the output layer of Linear is NoneType"):
        linear_head(nn.Linear(2, 2), BATCH)


def test_an_output_layer_that_is_used_twice_is_refused():
    model = sealed("llama")

    def use_again(module, _given, _out):
        module.lm_head(torch.zeros(1, 32).double())

    model.register_forward_hook(use_again)
    with pytest.raises(LossError, match="was called 2 times, expected once"):
        loss_without_logits(model, BATCH)


def test_a_model_that_raises_leaves_its_output_layer_as_it_was():
    model = patched(lambda _logits: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_without_logits(model, BATCH)

    assert "forward" not in vars(model.get_output_embeddings())

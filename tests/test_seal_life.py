"""A sealed model lives on: it generates as before, is copied, saved, interrupted and unsealed without a trace."""

import concurrent.futures
import copy
import io
import pickle
import threading

import pytest
import torch
import transformers
from models import SEALABLE, alone, built, calling, config_of, packed, packed_gradients, tiny
from seal_helpers import EVERY, families, layers_of, names_unpacked

import hermetic
from hermetic.errors import SealError
from hermetic.seal import is_sealed
from hermetic.seal.aligned import UNPACKED
from hermetic.seal.channel import Ticket, open_forward
from hermetic.seal.checkpointing import Carrying


def assert_sealed(model):
    report = hermetic.probe(calling(model, "default_cache"), lengths=(7, 5, 1, 9))

    assert report.verdict == "sealed"
    assert float(report.influence.max()) == 0.0


def assert_same_logits(model, other, batch=None):
    batch = packed((6, 9)) if batch is None else batch
    for one, two in zip(alone(model, batch), alone(other, batch), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_generation_gives_the_same_tokens_before_and_after_sealing_and_after_a_packed_step(name, implementation):
    assert_generates_the_same(name, implementation)


GENERATING = [name for name in EVERY if name != "xlstm"]  # the atlas's xLSTM cannot generate


@pytest.mark.parametrize("name", families("lfm2", "mamba", "bloom", slow=GENERATING))
def test_generation_with_a_state_gives_the_same_tokens_before_and_after_sealing_and_after_a_packed_step(name):
    assert_generates_the_same(name, None)


def assert_generates_the_same(name, implementation):
    model = tiny(name, implementation=implementation)
    left_padded = torch.tensor([[0, 0, 0, 5, 6, 7], [11, 12, 13, 14, 15, 16]])
    prompt = {"input_ids": left_padded, "attention_mask": (left_padded != 0).long()}

    def generated():
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return model.generate(**prompt, **options).tolist()

    before = generated()
    hermetic.seal(model)
    assert generated() == before
    packed_gradients(model, packed())
    assert generated() == before


@pytest.mark.parametrize("name", [*SEALABLE, *families("lfm2", "mamba", "bloom")])
def test_unsealing_restores_configuration_hooks_and_every_bit_of_the_output(name):
    model = tiny(name)
    own_hook = model.register_forward_pre_hook(lambda _module, _args: None)
    before = copy.deepcopy(model)
    attributes = {key: set(vars(module)) for key, module in model.named_modules()}
    hermetic.seal(model)
    calling(model, "document_ids")(packed())
    assert hermetic.unseal(model) is model

    assert not is_sealed(model)
    assert model.config.to_dict() == before.config.to_dict()
    for (key, module), other in zip(model.named_modules(), before.modules(), strict=True):
        assert set(vars(module)) == attributes[key]
        assert len(module._forward_hooks) == len(other._forward_hooks) == 0
        assert len(module._forward_pre_hooks) == len(other._forward_pre_hooks)
        assert not module._forward_pre_hooks_with_kwargs
        assert not module._forward_hooks_always_called
        if hasattr(module, "config"):
            assert module.config._attn_implementation == other.config._attn_implementation
    assert list(model._forward_pre_hooks) == [own_hook.id]
    assert_same_logits(model, before)


def test_unsealing_gives_back_the_very_forward_and_the_very_checkpointing_that_were_there_before():
    model = tiny("lfm2").train()
    model.gradient_checkpointing_enable()
    own = model.model.layers[0].conv.forward
    conv = model.model.layers[0].conv
    conv.forward = own  # as libraries that move weights about set it
    checkpointing = [layer._gradient_checkpointing_func for layer in model.model.layers]
    hermetic.seal(model)
    packed_gradients(model, packed())
    assert vars(conv)["forward"] is not own
    assert all(isinstance(layer._gradient_checkpointing_func, Carrying) for layer in model.model.layers)
    hermetic.unseal(model)

    assert vars(conv)["forward"] is own
    found = [layer._gradient_checkpointing_func for layer in model.model.layers]
    assert all(one is other for one, other in zip(found, checkpointing, strict=True))


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_a_part_of_a_sealed_model_is_not_sealed_again_and_the_whole_is_still_undone_exactly(name):
    model = hermetic.seal(tiny(name))
    with pytest.raises(SealError, match=r"is part of a model that is sealed already; .* call hermetic.unseal on that"):
        hermetic.seal(model.base_model)

    assert_sealed(model)
    hermetic.unseal(model)
    assert model.config._attn_implementation == "sdpa"
    assert_sealed(hermetic.seal(model))
    hermetic.unseal(model)
    hermetic.seal(hermetic.seal(model.base_model))  # a seal of its own is replaced
    assert_sealed(hermetic.seal(model))  # and so are those inside


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_sealing_under_inference_mode_is_sealing(name):
    model = tiny(name)
    with torch.inference_mode():
        hermetic.seal(model)
    assert_sealed(model)
    calling(model, "document_ids")(packed()).sum().backward()
    with torch.inference_mode():
        without_gradients = copy.deepcopy(model)
    with pytest.raises(SealError, match=r"weights that were made under torch.inference_mode\(\)"):
        hermetic.seal(without_gradients)


def test_unsealing_an_unsealed_model_leaves_it_alone():
    model = tiny("llama")

    assert hermetic.unseal(model) is model


def test_sealing_returns_the_same_object_and_sealing_again_replaces_the_seal():
    model = tiny("llama")
    assert hermetic.seal(model) is model
    hermetic.seal(model, backend="reference")

    assert hermetic.seal_report(model).backend == "reference"
    assert len(model._forward_pre_hooks) == 1
    assert_sealed(model)
    hermetic.unseal(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt2", "llama4", *families("lfm2", "mamba", "bloom")])
def test_rows_of_one_document_run_exactly_as_before(name):
    model = tiny(name)

    assert_same_logits(hermetic.seal(copy.deepcopy(model)), model)


def unpickled(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - what torch's launchers do with a model of our own


def through_torch_save(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled, through_torch_save])
@pytest.mark.parametrize("name", ["mistral", "gpt2", "lfm2"])
def test_a_copy_of_a_sealed_model_is_sealed_by_itself(name, copied):
    model = hermetic.seal(tiny(name))
    twin = copied(model)
    assert hermetic.seal_report(twin) == hermetic.seal_report(model)
    assert_sealed(twin)

    unpacked = names_unpacked(model)
    for name_of_one in unpacked:
        assert twin.get_submodule(name_of_one).forward.module is twin.get_submodule(name_of_one)
    hermetic.unseal(twin)
    assert twin.config._attn_implementation == "sdpa"
    assert not twin._forward_pre_hooks
    assert not any("forward" in vars(module) for module in twin.modules())
    assert_sealed(model)


def test_a_sealed_model_that_arrives_in_another_process_brings_its_interface_entries_along(monkeypatch):
    model = hermetic.seal(tiny("mistral"))
    pickled = pickle.dumps(model)
    for interface in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        monkeypatch.delitem(interface._global_mapping, model.config._attn_implementation)

    assert_sealed(pickle.loads(pickled))  # noqa: S301 - our own bytes


def test_two_models_with_one_configuration_never_leak_when_one_is_sealed():
    config = config_of("llama")
    first, second = built("llama", config, seed=0), built("llama", config, seed=1)
    assert first.config is second.config
    untouched = copy.deepcopy(second)
    hermetic.seal(first)

    assert_sealed(first)
    assert_same_logits(second, untouched)
    report = hermetic.probe(calling(second, "only_position_ids"))  # right on plain transformers, and still
    assert report.verdict == "sealed"

    hermetic.seal(second)
    assert_sealed(second)
    with pytest.raises(SealError, match=r"call hermetic.seal\(model\) again"):
        calling(first, "document_ids")(packed())


@pytest.mark.parametrize("name", ["llama", "lfm2", "mamba"])
def test_a_saved_model_has_no_trace_of_the_seal(name, tmp_path):
    model = hermetic.seal(tiny(name))
    model.save_pretrained(tmp_path)

    for path in tmp_path.rglob("*"):
        assert b"hermetic" not in path.read_bytes(), path.name
    assert (tmp_path / "config.json").exists()
    again = type(model).from_pretrained(tmp_path).eval()
    assert not is_sealed(again)
    assert_same_logits(again, model)


def interrupted_at(model, where):
    """The module before which a forward breaks off: the second layer, or one inside a module that is unpacked."""
    if where == "layer":
        return layers_of(model)[1]
    return model.get_submodule(names_unpacked(model)[0]).out_proj


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(("name", "where"), [("mistral", "layer"), ("lfm2", "layer"), ("lfm2", "mixer")])
def test_an_exception_in_the_middle_of_a_forward_leaves_nothing_behind(name, where, interruption):
    model = hermetic.seal(tiny(name))
    first, second = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = calling(model, "document_ids")(second)
    whole = alone(model, second)

    def interrupt(_module, _args):
        raise interruption

    handle = interrupted_at(model, where).register_forward_pre_hook(interrupt)
    with pytest.raises(interruption):
        calling(model, "document_ids")(first)
    handle.remove()

    assert torch.equal(calling(model, "document_ids")(second), expected)
    handle = interrupted_at(model, where).register_forward_pre_hook(interrupt)
    with pytest.raises(interruption):
        calling(model, "document_ids")(first)
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(alone(model, second), whole, strict=True))
    assert open_forward() is None
    assert UNPACKED.get() is None


@pytest.mark.parametrize("name", ["mistral", "lfm2"])
def test_an_interrupted_model_lends_its_documents_to_no_other(name):
    interrupted, other = hermetic.seal(tiny(name)), hermetic.seal(tiny(name, seed=1))
    first, second = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = [calling(other, "document_ids")(second), calling(interrupted, "document_ids")(second)]
    whole = alone(other, second)

    def interrupt(_module, _args):
        raise KeyboardInterrupt

    for batch_of_interrupted in (first, second):
        handle = interrupted.model.layers[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            calling(interrupted, "document_ids")(batch_of_interrupted)
        handle.remove()
        assert open_forward() is not None, "the traceback keeps the interrupted call, as a notebook does"
        assert torch.equal(calling(other, "document_ids")(second), expected[0])
        assert all(torch.equal(a, b) for a, b in zip(alone(other, second), whole, strict=True))
        del caught
        entered = interrupted.model(input_ids=second.input_ids[None], document_ids=second.boundaries.document_ids)
        assert torch.equal(interrupted.lm_head(entered.last_hidden_state)[0], expected[1])


@pytest.mark.parametrize("name", ["mistral", "lfm2"])
def test_a_sealed_model_that_runs_inside_another_keeps_the_documents_of_both(name):
    outer, inner = hermetic.seal(tiny(name)), hermetic.seal(tiny(name, seed=1))
    first, second = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = [calling(outer, "document_ids")(first), calling(inner, "document_ids")(second)]
    found = []
    handle = outer.model.embed_tokens.register_forward_pre_hook(
        lambda _module, _args: found.append(calling(inner, "document_ids")(second))
    )
    found.append(calling(outer, "document_ids")(first))
    handle.remove()

    assert torch.equal(found[1], expected[0])
    assert torch.equal(found[0], expected[1])


@pytest.mark.parametrize("name", ["mistral", "lfm2"])
def test_two_models_in_two_threads_never_mix_their_documents(name):
    models = [hermetic.seal(tiny(name, seed=seed)) for seed in (0, 1)]
    batches = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = [packed_gradients(model, batch) for model, batch in zip(models, batches, strict=True)]
    together = threading.Barrier(2)

    def trained(model, batch):
        together.wait()
        return [packed_gradients(model, batch) for _ in range(10)]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(trained, models, batches))

    for gradients, alone_in_its_thread in zip(found, expected, strict=True):
        assert all(torch.equal(each, alone_in_its_thread) for each in gradients)


def test_one_model_in_two_threads_keeps_the_documents_of_both_batches():
    model = hermetic.seal(tiny("lfm2"))
    batches = packed((9, 4, 7), seed=1), packed((2, 12, 6), seed=2)
    expected = [calling(model, "document_ids")(batch) for batch in batches]
    together = threading.Barrier(2)

    def run(batch):
        together.wait()
        return [calling(model, "document_ids")(batch) for _ in range(20)]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, batches))

    for logits, alone_in_its_thread in zip(found, expected, strict=True):
        assert all(torch.equal(each, alone_in_its_thread) for each in logits)


@pytest.mark.parametrize("shape", [(-1,), (1, -1)])
def test_labels_of_any_shape_and_shifted_ones_are_masked_at_the_seams(shape):
    model = hermetic.seal(tiny("llama"))
    batch = packed((5, 4, 7))
    labels, ids = batch.input_ids.clone(), batch.boundaries.document_ids
    row = batch.input_ids[None]
    expected = model(input_ids=row, document_ids=ids, labels=labels[None]).loss
    shifted = torch.cat([labels[1:], labels[:1]])

    assert torch.equal(model(input_ids=row, document_ids=ids, labels=labels.view(shape)).loss, expected)
    by_shift = model(input_ids=row, document_ids=ids, labels=labels[None], shift_labels=shifted.view(shape)).loss
    torch.testing.assert_close(by_shift, expected, rtol=1e-6, atol=0)


def test_labels_that_are_not_one_for_each_token_are_refused():
    model = hermetic.seal(tiny("llama"))
    batch = packed((5, 4, 7))

    with pytest.raises(SealError, match=r"labels has shape \(3,\); expected one label for each of 1 x 16 tokens"):
        model(
            input_ids=batch.input_ids[None], document_ids=batch.boundaries.document_ids, labels=torch.tensor([1, 0, 1])
        )


@pytest.mark.parametrize("name", ["mistral", "lfm2", "gemma2"])
def test_a_caller_may_enter_at_the_model_without_its_head(name):
    model = hermetic.seal(tiny(name, **{"gemma2": {"final_logit_softcapping": None}}.get(name, {})))
    batch = packed()
    inner = model.model(input_ids=batch.input_ids[None], document_ids=batch.boundaries.document_ids)

    assert torch.equal(model.lm_head(inner.last_hidden_state)[0], calling(model, "document_ids")(batch))


def test_embeddings_instead_of_ids_and_positional_arguments_are_packed_too():
    model = hermetic.seal(tiny("llama"))
    batch = packed()
    expected = calling(model, "document_ids")(batch)
    row = batch.input_ids[None]
    ids = batch.boundaries.document_ids
    ones = torch.ones_like(row)

    embedded = model(inputs_embeds=model.get_input_embeddings()(row), document_ids=ids).logits[0]
    positional = model(row, ones, batch.boundaries.position_ids[None]).logits[0]
    assert torch.equal(embedded, expected)
    assert torch.equal(positional, expected)


REPORTED = {
    "llama": [(None, None), (None, None)],
    "mistral": [(4, None), (4, None)],
    "gemma3": [(4, None), (None, None)],
    "llama4": [(None, 4), (None, None)],
}


@pytest.mark.parametrize(("name", "patterns"), REPORTED.items())
def test_the_report_lists_every_attention_module_with_its_window_and_chunk(name, patterns):
    report = hermetic.seal_report(hermetic.seal(tiny(name)))

    assert [module.name for module in report.modules] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [(module.window, module.chunk) for module in report.modules] == patterns
    assert all(module.causal for module in report.modules)
    assert report.original[0] == ("", "sdpa")
    assert report.leak == 0.0
    assert 0.0 < report.noise_floor < 1e-5
    assert report.equivalence < 1e-5


def test_a_bidirectional_encoder_is_sealed_as_one():
    model = tiny("bert")
    batch = packed((5, 3, 7))
    expected = alone(model, batch)
    hermetic.seal(model)

    assert not any(module.causal for module in hermetic.seal_report(model).modules)
    for one, other in zip(batch.unpack(calling(model, "only_position_ids")(batch)), expected, strict=True):
        assert (one - other).abs().max().item() <= 1e-5


def test_a_ticket_survives_its_encoding_and_no_other_mask_is_taken_for_one():
    ticket = Ticket(lengths=(3, 1, 4), causal=True, window=4, chunk=None)

    assert Ticket.decode(ticket.encode()) == ticket
    for other in (None, torch.zeros(1, 1, 8, 8), torch.zeros(1, 8, 1, 1, dtype=torch.int64), ticket.encode()[:, :-1]):
        assert Ticket.decode(other) is None

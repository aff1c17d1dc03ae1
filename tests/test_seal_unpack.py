"""What mixes tokens outside of transformers' attention interface runs document by document, and nothing else does."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import CALLS, LENGTHS, MORE_UNPACKED, UNPACKED, alone, calling, packed, tiny
from seal_helpers import assert_isolated, assert_packed_is_alone, names_unpacked, pair, sealed_and_plain

import hermetic
from hermetic.seal.aligned import lay_back, lay_out, layout_of
from hermetic.seal.channel import PackedForward

# With a state by default, their rows of one document cannot be trained, so the probe has nothing to compare with.
NO_STATE = {"rwkv": {"default_cache", "two_rows"}, "xlstm": {"default_cache", "two_rows"}}


@pytest.mark.parametrize("call", ["document_ids", "two_rows"])
@pytest.mark.parametrize("name", [*UNPACKED, "gpt_oss"])
def test_packed_documents_of_an_unpacked_model_are_those_of_the_unsealed_one_alone(name, call):
    assert_packed_is_alone(*pair(name), call)


@pytest.mark.parametrize("name", [*UNPACKED, "gpt_oss"])
def test_no_bit_and_no_gradient_crosses_a_seam_of_an_unpacked_model(name):
    assert_isolated(pair(name)[0])


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5", "mamba", "bamba", "bloom", "gpt_oss"])
def test_the_same_models_unsealed_leak(name):
    report = hermetic.probe(calling(pair(name)[1], "all_ones_mask"), lengths=LENGTHS)

    assert report.verdict == "leak"
    assert float(report.influence.max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call"),
    [(name, call) for name in (*UNPACKED, *MORE_UNPACKED) for call in CALLS if call not in NO_STATE.get(name, ())],
)
def test_no_call_breaks_the_seal_of_an_unpacked_model(name, call):
    sealed, plain = pair(name)

    assert_packed_is_alone(sealed, plain, call)
    report = hermetic.probe(calling(sealed, call), lengths=LENGTHS)
    assert report.verdict == "sealed"
    assert float(report.gradients.clone().fill_diagonal_(0.0).max()) == 0.0


HOW = {
    "lfm2": [("model.layers.0.conv", "unpack"), ("model.layers.1.self_attn", "interface")],
    "qwen3_5": [("model.layers.0.linear_attn", "unpack"), ("model.layers.1.self_attn", "interface")],
    "mamba": [("backbone.layers.0.mixer", "unpack"), ("backbone.layers.1.mixer", "unpack")],
    "bloom": [("transformer.h.0.self_attention", "unpack"), ("transformer.h.1.self_attention", "unpack")],
    "gemma2": [("model.layers.0.self_attn", "unpack"), ("model.layers.1.self_attn", "unpack")],
    "gpt_oss": [("model.layers.0.self_attn", "interface"), ("model.layers.1.self_attn", "interface")],
}
WHY = {
    "lfm2": "^it carries one document into another$",
    "mamba": "^it carries one document into another$",
    "bloom": "^it fails on packed rows: The size of tensor a",
    "gemma2": "^it fails on packed rows: Gemma2Attention of layer . cannot run packed: backend 'sdpa' has no softcap",
}


@pytest.mark.parametrize(("name", "modules"), HOW.items())
def test_the_report_names_the_modules_that_are_unpacked_and_only_token_mixers_are(name, modules):
    report = hermetic.seal_report(pair(name)[0])

    assert [(module.name, module.how) for module in report.modules] == modules
    assert not report.native
    assert report.leak == 0.0
    assert report.equivalence <= 10 * report.noise_floor < 1e-3


@pytest.mark.parametrize(("name", "reason"), WHY.items())
def test_the_report_says_why_a_module_is_unpacked(name, reason):
    modules = hermetic.seal_report(pair(name)[0]).modules

    assert all(re.search(reason, module.reason) for module in modules if module.how == "unpack")
    assert all(module.reason is None for module in modules if module.how == "interface")


def test_the_report_counts_the_pads_that_unpacked_modules_have_run_on():
    model = hermetic.seal(tiny("lfm2"))

    def shares():
        return [module.padding_share for module in hermetic.seal_report(model).modules]

    assert shares() == [0.0, 0.0], "the pads of the trial are not the user's"
    calling(model, "document_ids")(packed((11, 6, 1, 13, 5)))  # groups of (13, 11), (6, 5) and (1)
    assert shares() == [1 - 36 / (26 + 12 + 1), 0.0]
    calling(model, "document_ids")(packed((7, 7)))
    assert shares() == [1 - 50 / (39 + 14), 0.0]


@settings(max_examples=200)
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40), exact=st.booleans())
def test_a_layout_takes_at_most_a_quarter_more_slots_and_its_way_back_is_exact(lengths, exact):
    rows = PackedForward(lengths=tuple(lengths), num_rows=1, num_slots=sum(lengths))
    layout = layout_of(rows, torch.device("cpu"), exact=exact)
    laid = [group.stream for group in layout.groups]
    slots = sum(stream.numel() for stream in laid)

    assert sum(lengths) <= slots <= (1.0 if exact else 1.25) * sum(lengths)
    assert layout.padded_share == 1 - sum(lengths) / slots <= 0.2
    tokens = torch.arange(sum(lengths))[None]
    parts = [lay_out(tokens, (1,), rows, group) for group in layout.groups]
    assert torch.equal(lay_back(parts, 1, rows, layout), tokens)


ROWS = [[5, 7], [12], [1, 3, 8]]


def rows_of_ids(rows):
    return torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows])


def assert_rows_are_alone(sealed, plain, rows):
    generator = torch.Generator().manual_seed(0)
    ids = rows_of_ids(rows)
    tokens = torch.randint(3, 97, ids.shape, generator=generator)
    with torch.no_grad():
        found = sealed(input_ids=tokens, document_ids=ids, use_cache=False).logits
        for row, lengths in enumerate(rows):
            parts = zip(tokens[row].split(lengths), found[row].split(lengths), strict=True)
            for document, part in parts:
                expected = plain(input_ids=document[None], use_cache=False).logits[0]
                assert float((part - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("name", [*UNPACKED, "gpt_oss"])
def test_rows_with_different_documents_and_square_ones_are_each_document_alone(name):
    assert_rows_are_alone(*pair(name), ROWS)
    assert_rows_are_alone(*pair(name), [[2, 1]] * 3)  # as many rows as slots
    assert_rows_are_alone(*pair(name), [[1]])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_UNPACKED)
def test_rows_of_more_families_are_each_document_alone(name):
    models = pair(name)
    if name == "zamba":  # its exponentials make 1e-5 of float32's roundings, and 1e-9 of float64's
        models = [copy.deepcopy(model).double() for model in models]
    assert_rows_are_alone(*models, ROWS)
    assert_rows_are_alone(*models, [[2, 1]] * 3)


@pytest.mark.parametrize("name", UNPACKED)
def test_a_row_as_long_as_the_model_is_wide_is_not_mistaken_for_its_features(name):
    sealed, plain = pair(name)
    width = plain.get_input_embeddings().embedding_dim
    for total in (width, 2 * width, width // 4, 4, 3):
        assert_rows_are_alone(sealed, plain, [[total - 1, 1]])


@pytest.mark.parametrize("name", UNPACKED)
def test_the_padded_tail_of_unpacked_rows_reaches_nobody(name):
    sealed, plain = pair(name)
    batch = packed((3, 5), pad_to=12)
    inputs = batch.model_inputs()
    other = {**inputs, "input_ids": inputs["input_ids"].masked_fill(torch.arange(12) >= 8, 33)}
    with torch.no_grad():
        found, moved = (sealed(**call).logits[0, :8] for call in (inputs, other))

    assert torch.equal(found, moved)
    for one, expected in zip(found.split([3, 5]), alone(plain, packed((3, 5))), strict=True):
        assert float((one - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("name", UNPACKED)
def test_a_caller_of_an_unpacked_model_may_pass_embeddings(name):
    sealed, _ = pair(name)
    batch = packed()
    row, ids = batch.input_ids[None], batch.boundaries.document_ids
    embedded = sealed(inputs_embeds=sealed.get_input_embeddings()(row), document_ids=ids).logits

    assert torch.equal(embedded[0], calling(sealed, "document_ids")(batch))


WHOLE = ("qwen2_moe", "mpt", "bigbird_pegasus")
"""Types of which everything inside the head is unpacked."""


@pytest.mark.parametrize("name", WHOLE)
def test_embeddings_as_wide_as_the_row_is_long_are_not_mistaken_for_a_mask(name):
    sealed, plain = pair(name)
    width = plain.get_input_embeddings().embedding_dim
    for rows in ([[width // 2] * 2], [[2], [1, 1]]):
        ids = rows_of_ids(rows)
        tokens = torch.arange(3, 3 + ids.numel()).view(ids.shape)
        with torch.no_grad():
            found = sealed(inputs_embeds=sealed.get_input_embeddings()(tokens), document_ids=ids).logits
            expected = sealed(input_ids=tokens, document_ids=ids).logits
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("lengths", [(6, 6), (7, 5, 2)])  # one group of documents, and several
@pytest.mark.parametrize("return_dict", [True, False])
def test_hidden_states_of_an_unpacked_model_are_those_of_each_document_alone(name, lengths, return_dict):
    sealed, plain = pair(name)
    batch = packed(lengths)
    with torch.no_grad():
        call = {"output_hidden_states": True, "return_dict": return_dict}
        outputs = sealed(**batch.model_inputs(), **call)
        alone_ = [
            plain(input_ids=ids[None], use_cache=False, output_hidden_states=True)
            for ids in batch.unpack(batch.input_ids)
        ]
    found = outputs.hidden_states if return_dict else outputs[-1]

    assert len(found) == len(alone_[0].hidden_states) > 1
    for layer, states in enumerate(found):
        for one, other in zip(batch.unpack(states[0]), alone_, strict=True):
            expected = other.hidden_states[layer][0]
            assert float((one - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["bart", "bigbird_pegasus"])
def test_positions_that_all_documents_of_one_length_share_are_given_to_each(name):
    sealed, plain = pair(name)
    for rows in ([[6, 6]], [[5, 2, 5], [12], [6, 6]]):
        assert_rows_are_alone(sealed, plain, rows)
    instruments = ("swap", "gradient", "solo")  # BART's own loss does not shift labels, which is another finding
    assert hermetic.probe(sealed, lengths=(5, 5, 3, 5), instruments=instruments).verdict == "sealed"


def test_a_module_that_another_hook_mixes_after_it_is_unpacked_from_the_outside():
    plain = tiny("llama")
    plain.model.norm.register_forward_hook(lambda _module, _args, out: out + out.mean(dim=1, keepdim=True))
    sealed, plain = sealed_and_plain(plain)

    assert names_unpacked(sealed) == ["model"]
    assert_packed_is_alone(sealed, plain)


def test_positions_that_count_through_the_row_are_computed_for_each_document():
    plain = tiny("llama")
    ramp = torch.linspace(-1.0, 1.0, 128)[:, None]
    plain.model.embed_tokens.register_forward_hook(lambda _module, _args, out: out + ramp[: out.shape[1]])
    sealed, plain = sealed_and_plain(plain)

    assert names_unpacked(sealed) == ["model"]
    assert_packed_is_alone(sealed, plain)


def test_what_a_batch_leaves_behind_in_inference_mode_can_be_trained_on():
    sealed, plain = pair("lfm2")
    batch = packed((8, 3, 6))
    with torch.inference_mode():
        calling(sealed, "document_ids")(batch)

    assert_packed_is_alone(sealed, plain, batch=batch)

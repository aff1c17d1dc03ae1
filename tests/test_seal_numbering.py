"""A document may hold any id, that of padding too: a model that numbers tokens by id numbers each one alone.

RoBERTa and its kin give every padding token the same position and do not count it, when they are given no positions.
"""

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import CALLS, LENGTHS, alone, packed, tiny
from seal_helpers import assert_isolated, assert_packed_is_alone, names_unpacked

import hermetic
from hermetic.seal.inputs import Numbering
from hermetic.seal.trial import LONGER, Trial

PAD = 0
"""Of the tiny models here, which start to count at 1."""
BY_TOKEN = (
    "roberta",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
    ),
)


@functools.cache
def pair(name):
    plain = tiny(name)
    return hermetic.seal(copy.deepcopy(plain)), plain


def with_pads(lengths=LENGTHS, slots=(0, 3, 4, 17, 20, 35)):
    """Documents that begin with the padding token, hold it, end with it, are nothing else, and one without it."""
    ids = packed(lengths).input_ids.clone()
    ids[list(slots)] = PAD
    return hermetic.collate([{"input_ids": part} for part in ids.split(lengths)], pad_token_id=PAD)


@pytest.mark.parametrize("name", BY_TOKEN)
@pytest.mark.parametrize("call", sorted(CALLS))
def test_documents_that_hold_the_padding_token_are_computed_as_they_are_alone(name, call):
    sealed, plain = pair(name)

    assert_packed_is_alone(sealed, plain, call, with_pads())


def test_a_model_that_masks_by_token_when_it_is_given_no_mask_masks_each_document_alone():
    plain = tiny("xlm")
    sealed = hermetic.seal(copy.deepcopy(plain))
    ids = with_pads().input_ids.masked_fill(with_pads().input_ids == PAD, plain.config.pad_index)
    batch = hermetic.collate([{"input_ids": part} for part in ids.split(LENGTHS)])

    with torch.no_grad():
        found = batch.unpack(sealed(**CALLS["document_ids"](batch)).logits[0])
        masked = plain(input_ids=ids[None, :11], attention_mask=torch.ones(1, 11), use_cache=False).logits[0]
    expected = alone(plain, batch)
    assert float((masked - expected[0]).abs().max()) > 0.1
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_packed_documents_are_what_they_are_alone_whatever_their_ids(data):
    sealed, plain = pair("roberta")
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=sum(lengths), max_size=sum(lengths))))
    batch = hermetic.collate([{"input_ids": part} for part in ids.split(lengths)])

    with torch.no_grad():
        found = batch.unpack(sealed(**CALLS["document_ids"](batch)).logits[0])
    for one, other in zip(found, alone(plain, batch), strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def test_positions_by_place_are_others_so_that_the_law_above_is_not_empty():
    _, plain = pair("roberta")
    batch = with_pads()

    for ids, expected in zip(batch.unpack(batch.input_ids), alone(plain, batch), strict=True):
        by_place = torch.arange(1, 1 + len(ids))[None]
        with torch.no_grad():
            found = plain(input_ids=ids[None], position_ids=by_place, use_cache=False).logits[0]
        holds_a_pad = bool((ids == PAD).any())
        assert (float((found - expected).abs().max()) > 0.1) == holds_a_pad


def test_such_a_model_is_isolated_and_only_its_embeddings_are_unpacked():
    sealed, _ = pair("roberta")

    assert_isolated(sealed)
    assert names_unpacked(sealed) == ["roberta.embeddings"]


def test_rows_with_a_padded_tail_number_their_documents_alone():
    sealed, plain = pair("roberta")
    batch = with_pads()
    tailed = hermetic.collate(
        [{"input_ids": ids} for ids in batch.unpack(batch.input_ids)], pad_to=48, pad_token_id=PAD
    )

    with torch.no_grad():
        found = tailed.unpack(sealed(**tailed.model_inputs() | {"labels": None}).logits[0])
    for one, other in zip(found, alone(plain, batch), strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def test_positions_that_the_caller_chose_are_kept():
    sealed, plain = pair("roberta")
    batch = with_pads()
    chosen = batch.boundaries.position_ids[None] + 5

    with torch.no_grad():
        found = batch.unpack(sealed(input_ids=batch.input_ids[None], position_ids=chosen).logits[0])
        for ids, one in zip(batch.unpack(batch.input_ids), found, strict=True):
            positions = torch.arange(5, 5 + len(ids))[None]
            other = plain(input_ids=ids[None], position_ids=positions, use_cache=False).logits[0]
            assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def test_embeddings_have_no_ids_so_they_are_numbered_by_place():
    sealed, plain = pair("roberta")
    batch = with_pads()
    embedded = plain.get_input_embeddings()(batch.input_ids).detach()

    with torch.no_grad():
        rows = {"inputs_embeds": embedded[None], "document_ids": batch.boundaries.document_ids}
        found = batch.unpack(sealed(**rows).logits[0])
        for features, one in zip(batch.unpack(embedded), found, strict=True):
            other = plain(inputs_embeds=features[None], use_cache=False).logits[0]
            assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize(
    ("name", "numbering"),
    [
        ("roberta", Numbering(start=1, by_token=True)),
        ("llama", Numbering()),
        ("gpt2", Numbering()),
        ("xglm", Numbering()),
        ("bart", Numbering()),
    ],
)
def test_how_a_model_numbers_its_tokens_is_measured(name, numbering):
    assert Trial(tiny(name)).numbering() == numbering


@pytest.mark.parametrize("lengths", [(5, 4, 1, 3, 4), LONGER])
def test_the_trial_has_each_special_token_inside_of_a_document_and_ordinary_tokens_without(lengths):
    trial = Trial(tiny("llama"), lengths)

    assert sorted(trial.ids[(trial.ids < 3)].tolist()) == [0, 1, 2]
    assert int(trial.ordinary.min()) >= 3
    for part in trial.ids.split(lengths):
        assert part[0] >= 3
        assert part[-1] >= 3


def test_the_trial_of_a_model_whose_every_token_is_special_has_tokens_nonetheless():
    assert set(Trial(tiny("llama", vocab_size=3)).ordinary.tolist()) <= {0, 1, 2}

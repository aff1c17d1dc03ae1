"""Models whose tokens see both ways are judged by one rounding: halves of a document say nothing about noise there."""

import copy

import torch
import transformers
from models import alone, packed

import hermetic


def encoder(family):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForMaskedLM")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_a_sealed_encoder_computes_each_document_alone_both_ways():
    model = hermetic.seal(encoder("Bert"))
    lengths = [5, 3, 7]
    documents = [torch.arange(3, 3 + length) * 4 for length in lengths]
    packed = torch.cat(documents)[None]
    ids = hermetic.Boundaries.from_lengths(lengths).document_ids

    with torch.no_grad():
        found = model(input_ids=packed, document_ids=ids).logits[0].split(lengths)
        alone = [model(input_ids=document[None]).logits[0] for document in documents]

    assert all(not module.causal for module in hermetic.seal_report(model).modules)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_an_encoder_that_counts_its_positions_from_an_offset_is_sealed_and_counts_packed_documents_from_there():
    plain = encoder("Roberta")
    batch = packed((5, 3, 7))
    sealed = hermetic.seal(copy.deepcopy(plain))
    rows = {
        "document_ids": {"document_ids": batch.boundaries.document_ids},
        "positions from 0": batch.model_inputs(),
        "positions from 2": {"position_ids": batch.boundaries.position_ids[None] + 2},
    }

    for call in rows.values():
        with torch.no_grad():
            found = sealed(**{**call, "input_ids": batch.input_ids[None], "labels": None}).logits[0].split([5, 3, 7])
        for one, other in zip(found, alone(plain, batch), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)

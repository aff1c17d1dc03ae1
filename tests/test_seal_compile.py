"""A compiled sealed model gets the boundaries of each batch, not those of the batch it was compiled on."""

import pytest
import torch
from models import tiny

import hermetic


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_compiled_sealed_model_computes_each_document_alone_in_batches_with_other_boundaries():
    model = hermetic.seal(tiny("llama").eval())
    compiled = torch.compile(model, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)

    for lengths in ([5, 7, 3], [4, 4, 7], [9, 6], [2, 2, 2, 9]):
        documents = [torch.randint(3, 97, (length,), generator=generator) for length in lengths]
        inputs = hermetic.collate([{"input_ids": ids} for ids in documents]).model_inputs()
        with torch.no_grad():
            packed = compiled(**inputs).logits[0].split(lengths)
            alone = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in documents]
        for one, other in zip(packed, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_the_same_comparison_tells_a_compiled_model_that_is_not_sealed():
    compiled = torch.compile(tiny("llama").eval(), backend="aot_eager")
    ids = torch.arange(3, 18)
    inputs = {"position_ids": torch.arange(15)[None], "attention_mask": torch.ones(1, 15, dtype=torch.long)}

    with torch.no_grad():
        packed = compiled(input_ids=ids[None], **inputs).logits[0, 5:]
        alone = compiled(input_ids=ids[None, 5:]).logits[0]

    assert (packed - alone).abs().max() > 1

"""A compiled sealed model gets the boundaries of each batch, not those of the batch it was compiled on."""

import copy

import pytest
import torch
from models import (
    alone_gradients,
    gradients_of,
    relative_difference,
    tiny,
    token_loss,
    with_document_ids,
    without_dropout,
)
from models import packed as packed_batch
from seal_helpers import families

import hermetic


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", *families(slow=("lfm2", "qwen3_5", "mamba", "gemma2", "mpt"))])
def test_a_compiled_sealed_model_computes_each_document_alone_in_batches_with_other_boundaries(name):
    model = hermetic.seal(tiny(name).eval())
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo asks
@pytest.mark.parametrize("name", ["lfm2", "mamba", "gemma2"])
def test_a_compiled_unpacked_model_trains_on_what_each_document_alone_gives(name):
    plain = without_dropout(tiny(name)).train()
    compiled = torch.compile(hermetic.seal(copy.deepcopy(plain)), backend="aot_eager")
    for seed, lengths in enumerate([(5, 7, 3), (4, 4, 7)]):
        batch = packed_batch(lengths, seed=seed)
        token_loss(compiled(**with_document_ids(batch)).logits, batch.labels[None]).backward()
        assert relative_difference(gradients_of(compiled), alone_gradients(plain, batch)) <= 1e-4


def test_the_same_comparison_tells_a_compiled_model_that_is_not_sealed():
    compiled = torch.compile(tiny("llama").eval(), backend="aot_eager")
    ids = torch.arange(3, 18)
    inputs = {"position_ids": torch.arange(15)[None], "attention_mask": torch.ones(1, 15, dtype=torch.long)}

    with torch.no_grad():
        packed = compiled(input_ids=ids[None], **inputs).logits[0, 5:]
        alone = compiled(input_ids=ids[None, 5:]).logits[0]

    assert (packed - alone).abs().max() > 1

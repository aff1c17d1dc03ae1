"""Mixed precision: what autocast does to PyTorch's own attention it does to packed attention."""

import pytest
import torch
from attention_helpers import TRAINED_HERE
from models import tiny

import hermetic
from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError


def tensors(value_dtype):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 2, 16, generator=generator) for _ in range(3))
    return q, k, v.to(value_dtype)


@pytest.mark.parametrize("backend", TRAINED_HERE)
def test_under_autocast_float32_queries_and_half_values_are_attended_in_the_autocast_dtype(backend):
    q, k, v = tensors(torch.bfloat16)
    boundaries = Boundaries.from_lengths([3, 5])

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = packed_attention(q, k, v, boundaries, backend=backend)

    expected = packed_attention(q.bfloat16(), k.bfloat16(), v, boundaries, backend=backend)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_without_autocast_mixed_dtypes_are_refused():
    with pytest.raises(AttentionError, match=r"v is torch\.bfloat16 and q is torch\.float32; expected one dtype"):
        packed_attention(*tensors(torch.bfloat16), Boundaries.from_lengths([3, 5]))


@pytest.mark.parametrize("backend", TRAINED_HERE)
def test_a_sealed_model_isolates_documents_under_autocast_and_gives_gradients_to_every_weight(backend):
    model = hermetic.seal(tiny("llama"), backend=backend)

    def forward(batch):
        inputs = batch.model_inputs()
        del inputs["labels"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**inputs).logits

    report = hermetic.probe(forward)

    assert report.verdict == "sealed"
    assert report.influence.max() == 0.0
    assert report.gradient_equivalence is not None

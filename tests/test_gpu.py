"""On a GPU the seal holds exactly, and packed training stays within the noise of the device."""

import pytest
import torch
from attention_helpers import NAMES, problem, rounding_bounds
from models import LENGTHS, calling, tiny

import hermetic
from hermetic.attention import packed_attention

pytestmark = pytest.mark.gpu

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@dtypes
@pytest.mark.parametrize("call", ["all_ones_mask", "default_cache", "only_cu_seq_lens", "document_ids"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_a_sealed_model_isolates_exactly_and_equals_solo_within_the_floor(name, call, dtype):
    model = hermetic.seal(tiny(name).to("cuda", dtype))
    report = hermetic.probe(calling(model, call), lengths=LENGTHS)

    assert report.findings == ()
    assert report.verdict == "sealed"
    assert float(report.influence.max()) == 0.0
    assert float(report.gradients.clone().fill_diagonal_(0.0).max()) == 0.0
    assert float(report.equivalence.max()) <= 10 * report.noise_floor


@dtypes
def test_an_unsealed_model_leaks_on_the_gpu_too(dtype):
    report = hermetic.probe(calling(tiny("llama").to("cuda", dtype), "all_ones_mask"), lengths=LENGTHS)

    assert report.verdict == "leak"
    assert float(report.influence.max()) > 1.0


@dtypes
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 5}, {"chunk": 7}], ids=str)
def test_sdpa_is_the_reference_within_its_roundings(options, dtype):
    assert not torch.backends.cuda.matmul.allow_tf32  # with it, roundings are not those of float32
    p = problem((33, 17, 1, 0, 64, 40), tail=5, heads=3, groups=2, key_width=32, value_width=16, **options)
    exact = p.solve("reference")
    *inputs, upstream = (x.to("cuda", dtype) for x in p.tensors)
    q, k, v = (x.requires_grad_() for x in inputs)
    out = packed_attention(q, k, v, p.boundaries, **options)
    out.backward(upstream)

    found = (out.detach(), q.grad, k.grad, v.grad)
    for label, one, other, bound in zip(NAMES, found, exact, rounding_bounds(p, dtype), strict=True):
        assert bool(((one.cpu().double() - other).abs() <= bound).all()), label

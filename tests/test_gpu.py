"""On a GPU every backend keeps the laws of packed attention, the seal holds exactly, and one compilation is enough.

``benchmarks/gpu.py`` runs these tests and keeps what they record.
"""

import functools
import json
import time

import pytest
import torch
from attention_helpers import NAMES, problem, rounding_bounds
from models import LENGTHS, calling, tiny

import hermetic
from hermetic.attention import BACKENDS, available_backends, packed_attention
from hermetic.errors import BackendError
from hermetic.testing.attention import conformance_of
from hermetic.testing.problems import CASES

pytestmark = pytest.mark.gpu

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)

MAY_BE_MISSING = {"flash", "torch_varlen"}
"""Backends that need a package, or a newer PyTorch, or a newer card."""
HALF_ONLY = {"flash", "torch_varlen"}
COMPILED = {"flex"}
FEW = ("plain", "tiny documents", "no tokens", "window and sinks", "grouped heads")
"""For a compiled backend in its second and third dtype: features do not depend on the dtype, kernels do."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_attends_on_this_gpu_in_the_dtypes_that_it_is_for_or_says_what_is_missing(backend):
    status = available_backends("cuda")[backend]
    expected = {torch.bfloat16, torch.float16} | (set() if backend in HALF_ONLY else {torch.float32})

    assert set(status.forward) == set(status.backward)
    if backend in MAY_BE_MISSING and not status.forward:
        assert status.why_not
    else:
        assert expected <= set(status.backward)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_conforms_forward_backward_and_in_poisoned_memory_or_refuses(backend, dtype, record_property):
    assert not torch.backends.cuda.matmul.allow_tf32  # with it, float32 is not float32
    status = available_backends("cuda")[backend]
    fn = functools.partial(packed_attention, backend=backend)
    outcome = {"backend": backend, "dtype": str(dtype).removeprefix("torch.")}
    if dtype not in status.backward:
        record_property("conformance", json.dumps({**outcome, "status": "refused", "why": status.why_not}))
        q = torch.zeros(2, 1, 64, dtype=dtype, device="cuda")
        with pytest.raises(BackendError):
            fn(q, q, q, hermetic.Boundaries.from_lengths([2]))
        return
    few = backend in COMPILED and dtype != torch.bfloat16
    cases = [case for case in CASES if case.name in FEW] if few else CASES
    start = time.perf_counter()
    report = conformance_of(fn, device=torch.device("cuda"), dtypes=(dtype,), gradients=True, cases=cases)
    outcome |= {
        "status": "failed" if report.failed or report.unexamined else "passed",
        "passed": len(report.passed),
        "failed": [f"{check}: {check.detail}" for check in report.failed],
        "declined": sorted({f"{check.case}: {check.detail}" for check in report.declined}),
        "worst_ratio": report.worst_ratio,
        "seconds": round(time.perf_counter() - start, 1),
    }
    record_property("conformance", json.dumps(outcome))
    report.raise_for_failures()


def run_flex(lengths, num_slots):
    generator = torch.Generator("cuda").manual_seed(sum(lengths))
    q, k, v = (
        torch.randn(num_slots, 4, 64, device="cuda", dtype=torch.bfloat16, generator=generator).requires_grad_()
        for _ in range(3)
    )
    boundaries = hermetic.Boundaries.from_lengths(lengths)
    packed_attention(q, k, v, boundaries, backend="flex").sum().backward()
    return q.grad


def test_flex_compiles_for_the_first_of_three_batches_and_for_no_other_of_the_same_length():
    torch._dynamo.reset()
    run_flex([100, 412], 512)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert run_flex([37] * 13, 512).isfinite().all()
        assert run_flex([1, 300, 0, 200], 512).isfinite().all()
        with pytest.raises(torch._dynamo.exc.RecompileError):  # so it would have shown
            run_flex([1024], 1024)


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

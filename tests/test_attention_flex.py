"""FlexAttention as a backend: on the CPU forward only, and there what the reference defines.

Hypothesis tests run the kernel's mathematics without PyTorch's tracer, which takes half a second for every new
shape; the tests of fixed cases run the path that users run.
"""

import functools
import math
import warnings
from dataclasses import replace

import pytest
import torch
from attention_helpers import attention_options, problem, problems, rounding_bounds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention import flex_attention as torch_flex

from hermetic.attention import flex, packed_attention
from hermetic.attention.backend import AttentionCall
from hermetic.batch import Boundaries
from hermetic.errors import BackendError

with_fixture = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


@pytest.fixture
def untraced(monkeypatch):
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def compiled_as_on_cuda(monkeypatch):
    """Take the CUDA path on the CPU, with a compiler that compiles nothing; yields what it was given."""
    graphs = []

    def remember(graph, _inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    flex._compiled_flex.cache_clear()
    monkeypatch.setattr(flex, "_uncompiled", flex._compiled)
    with monkeypatch.context() as during_creation:
        during_creation.setattr(torch, "compile", functools.partial(torch.compile, backend=remember))
        flex._compiled_flex()
    yield graphs
    flex._compiled_flex.cache_clear()
    torch._dynamo.reset()


def forward(p, dtype=torch.float64, backend="flex", **more):
    q, k, v = (x.to(dtype) for x in p.tensors[:3])
    return packed_attention(q, k, v, p.boundaries, backend=backend, **p.options, **more)


def assert_within(found, exact, bound):
    assert bool(((found.double() - exact).abs() <= bound).all())


def capped_and_sunk(p, dtype, softcap, sinks):
    """How far an output with soft cap and sinks may be from the exact one; see ``rounding_bounds``.

    New here: a cap moves errors of a score by no more than themselves and rounds it four times; the log-sum-exp and
    the sink are as large as the scores and the sink itself, round four times, and move the sink's weight by as much.
    """
    u = torch.finfo(dtype).eps / 2
    accumulation = min(u, torch.finfo(torch.float32).eps / 2)
    q, k, v = (x[: p.num_tokens].abs() for x in p.tensors[:3])
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    steepness = float(torch.einsum("ihk,jhk->hij", q, k).max()) * q.shape[2] ** -0.5
    sums = p.num_tokens + q.shape[2] + v.shape[2]
    height = steepness + math.log(p.num_tokens) + (0.0 if sinks is None else float(sinks.abs().max()))
    factor = u * (16 + 2 * steepness) + accumulation * (2 * sums * (1 + steepness) + 8 * steepness + 4 * height)
    magnitudes = replace(p, tensors=(*p.tensors[:2], p.tensors[2].abs(), p.tensors[3]))
    return factor * forward(magnitudes, backend="reference", softcap=softcap, sinks=sinks)


@dtypes
@pytest.mark.usefixtures("untraced")
@with_fixture
@given(p=problems())
def test_flex_differs_from_the_exact_result_by_no_more_than_its_roundings(dtype, p):
    assert_within(forward(p, dtype), forward(p, backend="reference"), rounding_bounds(p, dtype)[0])


@st.composite
def capped_problems(draw):
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    p = problem(lengths, tail=draw(st.integers(0, 3)), heads=heads, groups=groups, seed=draw(st.integers(0, 999)))
    values = st.lists(st.integers(-16, 16), min_size=heads * groups, max_size=heads * groups)
    return p, draw(st.sampled_from([None, 0.5, 3.0, 30.0])), draw(st.none() | values.map(lambda x: torch.tensor(x) / 4))


@dtypes
@pytest.mark.usefixtures("untraced")
@with_fixture
@given(case=capped_problems())
def test_soft_cap_and_sinks_too_differ_by_no_more_than_their_roundings(dtype, case):
    p, softcap, sinks = case
    exact = forward(p, backend="reference", softcap=softcap, sinks=sinks)

    assert_within(forward(p, dtype, softcap=softcap, sinks=sinks), exact, capped_and_sunk(p, dtype, softcap, sinks))


def test_that_bound_catches_one_weight_that_leaks_a_thousandth_and_a_sink_that_is_forgotten():
    p, sinks = problem((6, 5), seed=3), torch.tensor([0.5, -1.0])
    exact = forward(p, backend="reference", softcap=3.0, sinks=sinks)
    bound = capped_and_sunk(p, torch.float32, 3.0, sinks)
    leaking = exact.clone()
    leaking[7] += 1e-3 * p.tensors[2][2]

    for wrong in (leaking, forward(p, torch.float32, softcap=3.0), forward(p, torch.float32, sinks=sinks)):
        with pytest.raises(AssertionError):
            assert_within(wrong, exact, bound)


@pytest.mark.parametrize(
    "options", [{"window": 50}, {"causal": False, "chunk": 60, "scale": 0.3, "groups": 2, "value_width": 3}], ids=str
)
def test_the_path_that_users_run_equals_the_reference_over_several_blocks(options):
    p = problem((150, 1, 0, 200, 30), tail=9, **options)

    assert torch.allclose(forward(p), forward(p, backend="reference"), rtol=0.0, atol=1e-12)


@pytest.mark.usefixtures("untraced", "poisoned_memory")
@with_fixture
@given(p=problems())
def test_the_tail_gives_zeros_and_moves_no_bit_whatever_it_holds(p):
    clean = forward(p, torch.float32)
    for x in p.tensors[:3]:
        x[p.num_tokens :] = float("nan")
    found = forward(p, torch.float32)

    assert bool(found.isfinite().all())
    assert not found[p.num_tokens :].any()
    assert torch.equal(found, clean)


@pytest.mark.usefixtures("untraced")
@with_fixture
@given(p=problems(), data=st.data())
def test_swapping_a_document_changes_no_bit_of_another(p, data):
    document = data.draw(st.integers(0, len(p.lengths) - 1))
    assume(p.lengths[document] > 0)
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    before = forward(p, torch.float32)
    for x in p.tensors:
        x[own] = x[own].flip(-1) * -3.0 + 1.0
    after = forward(p, torch.float32)

    assert not torch.equal(before[own], after[own])
    after[own] = before[own]
    assert torch.equal(before, after)


def test_inference_mode_leaves_no_mask_behind_that_a_later_backward_cannot_save():
    p = problem((3, 5))
    with torch.inference_mode():
        inferred = forward(p)
    remembered = flex._mask(p.lengths, 128, torch.device("cpu"), causal=True, window=None, chunk=None)

    assert torch.equal(inferred, forward(p))
    assert not remembered.kv_indices.is_inference()


def test_on_the_cpu_a_backward_pass_is_refused_with_the_backends_that_have_one():
    q = torch.zeros(5, 2, 4, requires_grad=True)
    boundaries = Boundaries.from_lengths([3, 2])

    with pytest.raises(BackendError, match=r"backend 'flex' has no backward pass on the CPU: .*; use .*'sdpa'"):
        packed_attention(q, q, q, boundaries, backend="flex")
    with torch.no_grad():
        assert not packed_attention(q, q, q, boundaries, backend="flex").any()


@pytest.mark.parametrize(
    ("slots", "options", "message"),
    [
        (5, {"dropout": 0.1}, "backend 'flex' has no dropout: .*; use .*'sdpa'"),
        (4097, {}, r"takes at most 4,096 slots on the CPU, where it makes \[H, T, T\] scores, and the row has 4,097"),
    ],
    ids=str,
)
def test_what_flex_lacks_is_refused_by_name(slots, options, message):
    x = torch.zeros(slots, 1, 1)

    with pytest.raises(BackendError, match=message):
        packed_attention(x, x, x, Boundaries.from_lengths([slots]), backend="flex", **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"with_gradient": False, "num_slots": 100_000}, None),
        ({"dtype": torch.float64}, "has no float64 on CUDA"),
        ({"device_type": "mps"}, "runs on cpu and cuda, and the inputs are on mps"),
    ],
    ids=str,
)
def test_what_flex_says_of_calls_on_other_devices(changes, message):
    call = AttentionCall(
        **{
            "device_type": "cuda",
            "dtype": torch.bfloat16,
            "heads": 2,
            "key_heads": 1,
            "key_width": 64,
            "value_width": 64,
            "num_slots": 100,
            "with_gradient": True,
            "options": attention_options({"softcap": 3.0, "sinks": torch.zeros(2)}),
            **changes,
        }
    )
    objection = flex.BACKEND.objection(call)

    assert objection is None if message is None else message in objection


def test_sinks_are_refused_under_a_pytorch_whose_flex_attention_keeps_the_log_sum_exp_to_itself(monkeypatch):
    x = torch.zeros(5, 1, 1)
    monkeypatch.delattr(torch_flex, "AuxRequest")

    with pytest.raises(BackendError, match=r"needs a newer PyTorch than .* for sinks: .* has no return_aux; use "):
        packed_attention(x, x, x, Boundaries.from_lengths([5]), backend="flex", sinks=torch.zeros(1))


@given(slots=st.integers(1, 2**20))
def test_rows_are_padded_to_whole_blocks_of_few_lengths(slots):
    padded = flex._padded(slots)

    assert padded % 128 == 0
    assert slots <= padded < max(slots + 128, slots * 9 / 8)
    assert flex._padded(padded) == padded
    octave = {flex._padded(n) for n in range(padded, 2 * padded, 128)}
    assert len(octave) <= 9


def test_elsewhere_than_on_the_cpu_heads_are_as_wide_as_the_matrix_units_need():
    narrow, wide = torch.empty(5, 2, 8, device="meta"), torch.empty(5, 2, 80, device="meta")

    assert flex._lay_out(narrow, 5, 128).shape == (1, 2, 128, 16)
    assert flex._lay_out(wide, 5, 128).shape == (1, 2, 128, 80)


def test_the_advice_to_compile_is_silenced_and_no_other_warning(monkeypatch):
    p = problem((3, 5))
    monkeypatch.setattr(torch_flex, "_WARNINGS_SHOWN", set())
    forward(p)  # pytest turns warnings into errors
    assert "flex_attention_performance" in torch_flex._WARNINGS_SHOWN

    def warn(*_args, **_options):
        warnings.warn("something else", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch_flex, "flex_attention", warn)
    with pytest.raises(UserWarning, match="something else"):
        forward(p)


def test_a_users_compiled_function_calls_flex_between_its_graphs_and_gets_each_batchs_own_numbers():
    graphs = []

    def remember(graph, _inputs):
        graphs.append(graph)
        return graph

    def function(q, k, v, boundaries):
        return packed_attention(q * 2, k, v, boundaries, backend="flex") + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=remember)
    for lengths in ((3, 5), (4, 4), (8,)):
        p = problem(lengths)
        assert torch.equal(compiled(*p.tensors[:3], p.boundaries), function(*p.tensors[:3], p.boundaries))
    torch._dynamo.reset()

    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert any("mul" in target for target in targets)
    assert not any("flex" in target for target in targets)


def test_batches_of_one_padded_length_share_one_compilation_and_others_pass_the_usual_limit(compiled_as_on_cuda):
    for lengths, options in [((3, 5), {}), ((1,) * 40, {}), ((70, 50), {"causal": False}), ((20, 7), {"window": 3})]:
        p = problem(lengths, tail=4, **options)
        assert torch.allclose(forward(p), forward(p, backend="reference"), rtol=0.0, atol=1e-12)
    assert len(compiled_as_on_cuda) == 1

    with torch._dynamo.config.patch(recompile_limit=1):
        forward(problem((256,)))
        forward(problem((384,)))
    assert len(compiled_as_on_cuda) == 3


def test_at_the_limit_compiling_raises_instead_of_falling_back_to_dense_scores(compiled_as_on_cuda, monkeypatch):
    monkeypatch.setattr(flex, "_MAX_COMPILATIONS", 1)
    forward(problem((128,)))

    with pytest.raises(FailOnRecompileLimitHit):
        forward(problem((256,)))
    assert len(compiled_as_on_cuda) == 1

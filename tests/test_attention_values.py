"""The sdpa backend computes what the reference defines, and the reference is what a dense mask says."""

import math

import pytest
import torch
from attention_helpers import NAMES, Problem, problem, problems, rounding_bounds
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask


def assert_within(found, exact, bounds):
    for name, x, y, bound in zip(NAMES, found, exact, bounds, strict=True):
        excess = (x.double() - y).abs() - bound
        assert excess.numel() == 0 or float(excess.max()) <= 0.0, name


@settings(max_examples=150)
@given(p=problems())
def test_sdpa_in_float64_is_the_reference_forward_and_backward(p):
    for name, found, defined in zip(NAMES, p.solve("sdpa"), p.solve("reference"), strict=True):
        assert torch.allclose(found, defined, rtol=0.0, atol=1e-12), name


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=100)
@given(p=problems())
def test_each_backend_differs_from_the_exact_result_by_no_more_than_its_roundings(backend, dtype, p):
    assert_within(p.solve(backend, dtype), p.solve("reference"), rounding_bounds(p, dtype))


def test_the_rounding_bounds_are_tight_enough_to_catch_one_weight_that_leaks_a_thousandth():
    p = problem((6, 5), scale=1.0, seed=3)
    exact = p.solve("reference")
    leaking = [x.clone() for x in exact]
    leaking[0][7] += 1e-3 * p.tensors[2][2]  # a token of the second document sees the first with weight 1e-3

    with pytest.raises(AssertionError, match="output"):
        assert_within(leaking, exact, rounding_bounds(p, torch.float32))


def from_dense_mask(p: Problem) -> torch.Tensor:
    """Attention over the whole row at once, masked cell by cell; a head at a time."""
    q, k, v, _ = p.tensors
    allowed = dense_mask(
        p.boundaries,
        causal=p.options.get("causal", True),
        window=p.options.get("window"),
        chunk=p.options.get("chunk"),
        num_slots=len(q),
    )
    scale = p.options.get("scale") or 1 / math.sqrt(q.shape[2])
    heads_per_group = q.shape[1] // k.shape[1]
    columns = []
    for head in range(q.shape[1]):
        exponentials = torch.exp(q[:, head] @ k[:, head // heads_per_group].T * scale) * allowed
        columns.append(exponentials @ v[:, head // heads_per_group] / exponentials.sum(dim=1, keepdim=True))
    return torch.stack(columns, dim=1)


@settings(max_examples=150)
@given(p=problems())
def test_the_reference_is_attention_under_the_dense_mask(p):
    real = slice(0, p.num_tokens)

    assert torch.allclose(p.solve("reference")[0][real], from_dense_mask(p)[real], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_in_a_window_of_4_row_6_sees_keys_3_to_6_and_row_5_sees_2_to_5(backend):
    keys = torch.zeros(7, 1, 1)
    values = torch.eye(7)[:, None, :]
    seen = packed_attention(keys, keys, values, Boundaries.from_lengths([7]), backend=backend, window=4)[:, 0]

    assert seen[6].tolist() == [0, 0, 0, 0.25, 0.25, 0.25, 0.25]
    assert seen[5].tolist() == [0, 0, 0.25, 0.25, 0.25, 0.25, 0]


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_window_of_4_changes_nothing_for_documents_of_3(backend):
    plain, windowed = problem((3, 3, 3)), problem((3, 3, 3), window=4)

    for unlimited, limited in zip(plain.solve(backend), windowed.solve(backend), strict=True):
        assert torch.equal(unlimited, limited)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_chunks_count_from_the_start_of_each_document(backend):
    keys = torch.zeros(8, 1, 1)
    values = torch.eye(8)[:, None, :]
    seen = packed_attention(keys, keys, values, Boundaries.from_lengths([3, 5]), backend=backend, chunk=4)[:, 0]

    assert seen[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 0, 0])
    assert seen[6].tolist() == [0, 0, 0, 0.25, 0.25, 0.25, 0.25, 0]  # the fourth token of the second document
    assert seen[7].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]  # its fifth begins a chunk


@given(softcap=st.none() | st.floats(0.5, 30.0), with_sinks=st.booleans(), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_soft_cap_and_sinks_follow_their_formula(softcap, with_sinks, seed):
    p = problem((4, 3), heads=2, seed=seed)
    q, k, v, _ = p.tensors
    sinks = torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) if with_sinks else None
    out = packed_attention(q, k, v, p.boundaries, backend="reference", softcap=softcap, sinks=sinks)

    for token, first in [(0, 0), (3, 0), (4, 4), (6, 4)]:
        for head in range(2):
            scores = [float(q[token, head] @ k[j, 0]) / 2.0 for j in range(first, token + 1)]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            total = sum(map(math.exp, scores)) + (math.exp(float(sinks[head])) if with_sinks else 0.0)
            expected = sum(math.exp(s) / total * v[j, 0] for s, j in zip(scores, range(first, token + 1), strict=True))
            assert torch.allclose(out[token, head], expected, rtol=0.0, atol=1e-12)


def test_sinks_get_the_gradient_of_the_weight_they_take():
    p = problem((1,), heads=1)
    sinks = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    q, k, v, _ = (torch.zeros_like(x) for x in p.tensors)
    packed_attention(q, k, v + 1, p.boundaries, backend="reference", sinks=sinks).sum().backward()

    assert sinks.grad.item() == pytest.approx(-0.25 * 4)  # four value features, each with weight 1 / (1 + e^sink)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_keeps_the_mean_and_drops_something(backend):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(40, 4, 8, generator=generator)
    boundaries = Boundaries.from_lengths([25, 15])
    torch.manual_seed(0)
    runs = [packed_attention(q, q, torch.ones_like(q), boundaries, backend=backend, dropout=0.5) for _ in range(200)]

    assert not torch.equal(runs[0], runs[1])
    # 200 runs x 1280 outputs of variance at most 1 (weights sum to 1, each kept with probability 1/2 and doubled)
    assert float(torch.stack(runs).mean()) == pytest.approx(1.0, abs=5 / math.sqrt(200 * 40 * 4))

"""A token at the start of each document can be its attention sink, for any kernel and to the last bit that counts."""

import dataclasses
import doctest
import re

import pytest
import torch
from attention_helpers import attention_options, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.attention import reference, sinks
from hermetic.attention.sinks import SMALLEST_SCALE, extra_width, with_sink_tokens, without_sink_tokens

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v", "gradient of the sinks")


def solve(p, sink_logits, *, by_token, dtype=torch.float64, causal=True, scale=1.0, **options):
    """Output and gradients of q, k, v and the sinks; the kernel is the reference, which is not told of the sinks."""
    *inputs, upstream = (x.to(dtype) for x in p.tensors)
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    logits = sink_logits.clone().requires_grad_()
    asked = attention_options({"causal": causal, "scale": scale, "sinks": logits, **options})
    if by_token:
        blind = dataclasses.replace(asked, sinks=None)
        extended = with_sink_tokens(q, k, v, p.lengths, sinks=logits, scale=scale)
        out = without_sink_tokens(reference.attend(*extended, blind), p.lengths)
    else:
        out = reference.attend(q, k, v, p.lengths, asked)
    out.backward(upstream)
    return [out.detach(), q.grad, k.grad, v.grad, logits.grad]


def sinks_for(p, seed=0):
    return 3 * torch.randn(p.tensors[0].shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    key_width=st.integers(1, 5),
    value_width=st.integers(1, 5),
    causal=st.booleans(),
    scale=st.sampled_from([1.0, 0.3, -0.7, 5.0, SMALLEST_SCALE]),
    seed=st.integers(0, 2**16),
)
def test_a_sink_token_gives_the_output_and_all_gradients_of_a_sink(lengths, seed, causal, scale, **sizes):
    p = problem(lengths, seed=seed, **sizes)
    options = {"causal": causal, "scale": scale}
    found, defined = (solve(p, sinks_for(p, seed), by_token=by_token, **options) for by_token in (True, False))

    for name, x, y in zip(NAMES, found, defined, strict=True):
        assert torch.allclose(x, y, rtol=0.0, atol=1e-11), name


def test_the_comparison_above_sees_a_sink_that_is_left_out():
    p = problem((4, 3))
    found = solve(p, sinks_for(p) - 1e6, by_token=True)
    defined = solve(p, sinks_for(p), by_token=False)

    assert not any(torch.allclose(x, y, rtol=0.0, atol=1e-3) for x, y in zip(found, defined, strict=True))


@pytest.mark.parametrize(("options", "exact"), [({"window": 2}, False), ({"softcap": 1.0}, False), ({}, True)], ids=str)
def test_a_window_loses_the_sink_token_and_a_soft_cap_caps_it(options, exact):
    p = problem((6,), seed=1)
    found, defined = (solve(p, sinks_for(p), by_token=by_token, **options)[0] for by_token in (True, False))

    assert torch.allclose(found, defined, rtol=0.0, atol=1e-12) is exact


def logit_errors(dtype, scale, keep):
    """Relative errors of the logits that 8 heads in 2 groups meet at their sink key, with ``keep`` of 8 new columns."""
    logits = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    q, k = torch.ones(3, 8, 16, dtype=dtype), torch.ones(3, 2, 16, dtype=dtype)
    q, k, _, _ = with_sink_tokens(q, k, k, (3,), sinks=logits, scale=scale)
    query, sink_key = q[1, :, 16 : 16 + keep].double(), k[0, :, 16 : 16 + keep].double().repeat_interleave(4, dim=0)
    return ((query * sink_key).sum(-1) * scale / logits - 1).abs()


@pytest.mark.parametrize("scale", [1.0, 16**-0.5, 1 / 3, -0.1, 40.0, SMALLEST_SCALE])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_columns_lose_the_square_of_what_one_column_loses(dtype, scale):
    unit = torch.finfo(dtype).eps / 2

    assert float(logit_errors(dtype, scale, keep=8).max()) <= unit**2 + 2**-22  # the division is made in float32
    assert float(logit_errors(dtype, scale, keep=4).max()) > unit / 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_needs_one_column_and_half_precision_two_per_head_of_a_group(dtype):
    assert extra_width(12, 4, dtype) == 3
    assert extra_width(12, 4, torch.float16) == extra_width(12, 4, torch.bfloat16) == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_the_gradient_of_the_sinks_is_summed_over_documents_in_float32(dtype):
    # Each of 600 documents of one token adds -0.25 * 4 * 2**-8, which half precision loses beside its sum.
    p = problem((1,) * 600, heads=1)
    q, k, v, upstream = (torch.zeros_like(x, dtype=dtype) for x in p.tensors)
    q, k, v, lengths = with_sink_tokens(
        q, k, v + 1, p.lengths, sinks=(logits := torch.zeros(1, requires_grad=True)), scale=1.0
    )
    out = reference.attend(q, k, v, lengths, attention_options({}))
    without_sink_tokens(out, p.lengths).backward(upstream + 2**-8)

    assert logits.grad.item() == -600 * 2**-8


def test_documents_without_tokens_get_no_sink_token():
    x = torch.arange(1.0, 6.0).view(5, 1, 1)
    q, k, v, lengths = with_sink_tokens(x, x, x, (0, 3, 0, 2, 0), sinks=torch.tensor([7.0]), scale=1.0)

    assert lengths == (0, 4, 0, 3, 0)
    assert v.flatten().tolist() == [0, 1, 2, 3, 0, 4, 5]
    assert k[:, 0].tolist() == [[0, 7], [1, 0], [2, 0], [3, 0], [0, 7], [4, 0], [5, 0]]
    assert q[:, 0].tolist() == [[0, 0], [1, 1], [2, 1], [3, 1], [0, 0], [4, 1], [5, 1]]
    assert without_sink_tokens(v, (0, 3, 0, 2, 0)).equal(x)


def test_each_head_of_a_group_meets_its_own_sink():
    x = torch.zeros(1, 4, 1)
    q, k, _, _ = with_sink_tokens(x, x[:, :2], x[:, :2], (1,), sinks=torch.tensor([1.0, 2.0, 3.0, 4.0]), scale=1.0)

    assert q[1, :, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert k[0, :, 1:].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 2}, "has no sinks together with a window: its sink is each document's first token"),
        ({"softcap": 30.0}, "has no sinks together with a softcap: its sink is a token, whose logit would be capped"),
        ({"scale": 0.0}, "has no sinks with scale 0.0: they need a scale of at least 6.103515625e-05 in magnitude"),
        ({"scale": -1e-5}, "has no sinks with scale -1e-05"),
    ],
    ids=str,
)
def test_what_a_sink_token_cannot_stand_in_for_is_said(changes, message):
    asked = attention_options({"sinks": torch.zeros(2), **changes})

    assert re.match(re.escape(message), sinks.objection(asked))
    assert sinks.objection(dataclasses.replace(asked, sinks=None)) is None


@pytest.mark.parametrize("scale", [1.0, -0.3, SMALLEST_SCALE])
def test_a_sink_token_serves_causal_and_bidirectional_documents_and_chunks_at_any_scale_that_is_not_zero(scale):
    for changes in ({}, {"causal": False}, {"chunk": 3}, {"dropout": 0.1}):
        assert sinks.objection(attention_options({"sinks": torch.zeros(2), "scale": scale, **changes})) is None


def test_every_worked_example_of_the_sinks_gives_what_it_says():
    results = doctest.testmod(sinks)

    assert results.attempted > 0
    assert results.failed == 0

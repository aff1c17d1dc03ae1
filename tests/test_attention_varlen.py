"""The backends with variable-length kernels are the reference within their roundings, on stand-ins for the kernels."""

import dataclasses
import doctest
import math

import pytest
import torch
import torch.nn.attention.varlen
from attention_helpers import NAMES, problem, problems, rounding_bounds
from hypothesis import given, settings
from hypothesis import strategies as st
from varlen_standin import KERNELS, installed

from hermetic.attention import edges, packed_attention
from hermetic.attention.sinks import with_sink_tokens
from hermetic.batch import Boundaries

kernels = pytest.mark.parametrize("kernel", KERNELS)
halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
flashes = pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if KERNELS[kernel] == "flash"])


def representable(p):
    """The same problem with values that float16 holds too: bfloat16 reaches further down."""
    return dataclasses.replace(p, tensors=tuple(x.half().double() for x in p.tensors))


def assert_within(found, exact, bounds, dtype, names=NAMES):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for name, x, y, bound in zip(names, found, exact, bounds, strict=True):
        excess = (x.double() - y).abs() - bound - smallest / 2  # half a step where float16 has no smaller exponent
        assert excess.numel() == 0 or float(excess.max()) <= 0.0, name


@kernels
@halves
@settings(max_examples=40)
@given(p=problems())
def test_each_kernel_gives_the_reference_within_its_roundings_forward_and_backward(kernel, dtype, p):
    p = representable(p)
    with installed(kernel):
        found = p.solve(KERNELS[kernel], dtype)

    assert_within(found, p.solve("reference"), rounding_bounds(p, dtype), dtype)


@flashes
@halves
@settings(max_examples=30)
@given(p=problems(), softcap=st.floats(0.5, 30.0))
def test_flash_has_the_soft_cap(kernel, dtype, p, softcap):
    p = representable(dataclasses.replace(p, options={**p.options, "softcap": softcap}))
    with installed(kernel):
        found = p.solve("flash", dtype)

    assert_within(found, p.solve("reference"), rounding_bounds(p, dtype), dtype)


def solve_with_sinks(p, logits, backend, dtype=torch.float64):
    """As ``Problem.solve``, and the gradient of the sinks at the end."""
    logits = logits.clone().requires_grad_()
    found = dataclasses.replace(p, options={**p.options, "sinks": logits}).solve(backend, dtype)
    return [*found, logits.grad]


def bounds_with_sinks(p, logits, dtype):
    """The sinks of a problem are tokens of another problem, and roundings do not know the difference."""
    scale = p.options.get("scale") or p.tensors[0].shape[2] ** -0.5
    lengths = edges.chunks(p.lengths, p.options.get("chunk"))
    real = sum(lengths)
    q, k, v, extended = with_sink_tokens(*(x[:real] for x in p.tensors[:3]), lengths, sinks=logits, scale=scale)
    upstream = with_sink_tokens(*(p.tensors[3][:real],) * 3, lengths, sinks=0 * logits, scale=scale)[2]
    options = {"causal": p.options.get("causal", True), "scale": scale}
    bounds = rounding_bounds(
        dataclasses.replace(p, lengths=extended, tensors=(q, k, v, upstream), options=options), dtype
    )
    first = [begin for begin, n in zip(_begins(extended), extended, strict=True) if n > 0]
    ordinary = torch.ones(len(q), dtype=torch.bool).index_fill_(0, torch.tensor(first, dtype=torch.int64), False)
    width, unit = p.tensors[0].shape[2], float(q[ordinary, 0, p.tensors[0].shape[2] :].max()) if real else 1.0
    of_sinks = bounds[2][first][:, :, width:].sum(0).flatten() / abs(unit * scale)
    tail = [torch.zeros(len(p.tensors[0]) - real, *x.shape[1:]) for x in p.tensors]
    shown = [bounds[0], bounds[1][..., :width], bounds[2][..., :width], bounds[3]]
    of_tensors = [torch.cat([x[ordinary], t]) for x, t in zip(shown, (tail[3], *tail[:3]), strict=True)]
    return [*of_tensors, of_sinks]


def _begins(lengths):
    return [sum(lengths[:i]) for i in range(len(lengths))]


@kernels
@halves
@settings(max_examples=25)
@given(p=problems(), seed=st.integers(0, 999))
def test_sinks_take_their_weight_and_get_their_gradient(kernel, dtype, p, seed):
    p = representable(dataclasses.replace(p, options={**p.options, "window": None}))
    logits = 3 * torch.randn(p.tensors[0].shape[1], generator=torch.Generator().manual_seed(seed)).double()
    with installed(kernel):
        found = solve_with_sinks(p, logits, KERNELS[kernel], dtype)

    exact, bounds = solve_with_sinks(p, logits, "reference"), bounds_with_sinks(p, logits, dtype)
    assert_within(found, exact, bounds, dtype, (*NAMES, "gradient of the sinks"))


@halves
def test_the_sinks_of_flash_attn_4_go_with_a_window_and_with_a_soft_cap(dtype):
    p = representable(problem((9, 0, 4), heads=2, groups=2, tail=2))
    logits = torch.tensor([-1.0, 0.0, 1.0, 3.0]).double()
    for options in ({"window": 3}, {"softcap": 2.0}, {"window": 2, "softcap": 5.0}):
        asked = dataclasses.replace(p, options=options)
        with installed("flash-attn 4"):
            found = solve_with_sinks(asked, logits, "flash", dtype)

        # No closer: the plain problem's bounds hold, for a sink only takes weight from its terms; 13 tokens add up.
        of_sinks = rounding_bounds(asked, dtype)[0].sum() * p.tensors[3].abs().max()
        bounds = [*rounding_bounds(asked, dtype), of_sinks]
        assert_within(found, solve_with_sinks(asked, logits, "reference"), bounds, dtype, (*NAMES, "sinks"))


def test_the_comparisons_above_see_a_leak_of_one_part_in_fifty_and_a_sink_that_is_forgotten():
    p = representable(problem((6, 5), scale=0.1, seed=3))
    exact, logits, dtype = p.solve("reference"), torch.zeros(2).double(), torch.float16
    leaking = [x.clone() for x in exact]
    leaking[0][7] += 0.02 * p.tensors[2][2]
    with_sinks = solve_with_sinks(p, logits, "reference")

    with pytest.raises(AssertionError, match="output"):
        assert_within(leaking, exact, rounding_bounds(p, dtype), dtype)
    with pytest.raises(AssertionError, match="output"):
        assert_within([*exact, logits], with_sinks, bounds_with_sinks(p, logits, dtype), dtype, (*NAMES, "sinks"))


@pytest.fixture
def unwritten_memory_is_nan():
    """What ``torch.use_deterministic_algorithms`` fills, and every kernel is told of it."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


@kernels
@pytest.mark.usefixtures("unwritten_memory_is_nan")
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("lengths", [(3, 0, 2), (1, 1), (0, 4)], ids=str)
def test_the_tail_is_zeros_in_output_and_gradients_whatever_it_holds_and_memory_holds(kernel, with_sinks, lengths):
    assert torch.empty(3).isnan().all(), "otherwise this would prove nothing"
    options = {"sinks": torch.zeros(4)} if with_sinks else {}
    p = problem(lengths, groups=2, tail=3, **options)
    for x in p.tensors[:3]:
        x[p.num_tokens :] = math.nan
    with installed(kernel):
        results = p.solve(KERNELS[kernel], torch.bfloat16)

    for result in results:
        assert bool(result[: p.num_tokens].isfinite().all())
        assert torch.equal(result[p.num_tokens :], torch.zeros_like(result[p.num_tokens :]))


@kernels
@settings(max_examples=30)
@given(p=problems(), data=st.data())
def test_gradients_across_documents_are_exactly_zero(kernel, p, data):
    document = data.draw(st.integers(0, len(p.lengths) - 1))
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    p.tensors[3][:] = torch.zeros_like(p.tensors[3]).index_fill_(0, torch.arange(len(p.tensors[3]))[own], 1.0)
    if p.options["window"] is None:
        p.options["sinks"] = torch.ones(p.tensors[0].shape[1])
    with installed(kernel):
        gradients = p.solve(KERNELS[kernel], torch.bfloat16)[1:]

    for gradient in gradients:
        gradient[own] = 0.0
        assert torch.equal(gradient, torch.zeros_like(gradient))


def heard(kernel, lengths, *, tail=0, groups=1, **options):
    """The arguments of the one kernel call that a forward and a backward pass make."""
    p = problem(lengths, tail=tail, groups=groups, **options)
    with installed(kernel) as calls:
        p.solve(KERNELS[kernel], torch.bfloat16)
    (arguments,) = calls.arguments
    return {name: value.tolist() if name.startswith("cu_") else value for name, value in arguments.items()}


CU_AND_LONGEST = {
    "varlen_attn": ("cu_seq_q", "cu_seq_k", "max_q", "max_k"),
    "flash-attn 2": ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
}


@kernels
@pytest.mark.parametrize(
    ("lengths", "options", "cu_seqlens", "longest"),
    [
        ((3, 0, 2), {}, [0, 3, 5], 3),
        ((3, 0, 2), {"tail": 7}, [0, 3, 5], 3),
        ((0, 3, 5, 0), {"chunk": 4}, [0, 3, 7, 8], 4),
        ((3, 0, 2), {"sinks": torch.zeros(2)}, [0, 4, 7], 4),
        ((3, 5), {"chunk": 4, "sinks": torch.zeros(2)}, [0, 4, 9, 11], 5),
    ],
    ids=str,
)
def test_a_kernel_is_called_once_with_the_edges_of_documents_that_have_tokens(
    kernel, lengths, options, cu_seqlens, longest
):
    if kernel == "flash-attn 4" and "sinks" in options:
        cu_seqlens, longest = ([0, 3, 5], 3) if lengths == (3, 0, 2) else ([0, 3, 7, 8], 4)  # it has sinks of its own
    found = heard(kernel, lengths, **options)
    names = CU_AND_LONGEST.get(kernel, CU_AND_LONGEST["flash-attn 2"])

    assert [found[name] for name in names] == [cu_seqlens, cu_seqlens, longest, longest]


@kernels
def test_documents_of_one_token_with_grouped_heads_never_take_the_decoding_path(kernel):
    found = heard(kernel, (1, 1, 1), groups=2)

    assert found[CU_AND_LONGEST.get(kernel, CU_AND_LONGEST["flash-attn 2"])[2]] == 2


@pytest.mark.parametrize(
    ("options", "window_size", "causal"),
    [
        ({}, (-1, 0), True),
        ({"window": 4}, (3, 0), True),
        ({"window": 1}, (0, 0), True),
        ({"causal": False}, (-1, -1), False),
    ],
    ids=str,
)
def test_masks_scale_and_splits_are_said_in_each_kernels_own_words(options, window_size, causal):
    unlimited = "window" not in options
    for kernel, limits in (
        ("flash-attn 2", (-1, -1) if unlimited else window_size),
        ("flash-attn 3", (-1, -1) if unlimited else window_size),
        ("flash-attn 4", (None, None) if unlimited else window_size),
    ):
        found = heard(kernel, (7, 3), scale=0.3, **options)
        assert (found["window_size"], found["causal"], found["softmax_scale"]) == (limits, causal, 0.3)
        assert found.get("num_splits", 1) == 1
        assert (found["softcap"], found["deterministic"]) == (0.0, False)

    found = heard("varlen_attn", (7, 3), scale=0.3, **options)
    assert (found["window_size"], found["scale"], found["num_splits"]) == (window_size, 0.3, None)


def test_the_scale_is_that_of_the_callers_width_and_not_of_the_padded_one():
    assert heard("flash-attn 2", (4,), key_width=4)["softmax_scale"] == 0.5


@kernels
def test_features_that_do_not_lie_next_to_each_other_are_laid_so_for_the_kernel(kernel):
    x = torch.randn(8, 5, 2, generator=torch.Generator().manual_seed(0)).bfloat16().permute(1, 2, 0)
    boundaries, backend = Boundaries.from_lengths([3, 2]), KERNELS[kernel]
    with installed(kernel):  # which refuses anything else
        scattered, contiguous = (packed_attention(y, y, y, boundaries, backend=backend) for y in (x, x.contiguous()))

    assert x.stride(-1) == 10
    assert torch.equal(scattered, contiguous)


def test_another_flash_implementation_under_pytorchs_function_is_told_not_to_split(monkeypatch):
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: "FA3")
    with pytest.raises(AssertionError, match="may refuse to be asked"):
        heard("varlen_attn", (4,))


@flashes
@pytest.mark.usefixtures("unwritten_memory_is_nan")
def test_where_pytorch_is_deterministic_so_are_the_kernels(kernel):
    assert heard(kernel, (3, 2))["deterministic"] is True


@pytest.mark.parametrize("kernel", ["flash-attn 2", "varlen_attn"])
def test_in_a_window_of_4_row_6_sees_keys_3_to_6_and_documents_of_3_see_as_if_there_were_none(kernel):
    keys, values = torch.zeros(7, 1, 1).half(), torch.eye(7).half()[:, None, :]
    with installed(kernel):
        backend = {"backend": KERNELS[kernel]}
        seen = packed_attention(keys, keys, values, Boundaries.from_lengths([7]), window=4, **backend)[:, 0]
        plain, limited = (problem((3, 3, 3), window=w).solve(KERNELS[kernel], torch.float16) for w in (None, 4))

    assert seen[6].tolist() == [0, 0, 0, 0.25, 0.25, 0.25, 0.25]
    assert seen[5].tolist() == [0, 0, 0.25, 0.25, 0.25, 0.25, 0]
    assert all(torch.equal(x, y) for x, y in zip(plain, limited, strict=True))


def test_dropout_keeps_the_mean_and_drops_the_same_weights_in_the_backward_pass():
    torch.manual_seed(0)
    q, k = torch.randn(2, 40, 4, 8).half()
    v = torch.ones(40, 4, 8).half().requires_grad_()
    with installed("flash-attn 2"):
        runs = [
            packed_attention(q, k, v, Boundaries.from_lengths([25, 15]), backend="flash", dropout=0.5)
            for _ in range(100)
        ]
        runs[0].sum().backward()

    assert not torch.equal(runs[0], runs[1])
    # 100 runs x 160 outputs of variance at most 1 (weights sum to 1, each kept with probability 1/2 and doubled)
    assert float(torch.stack(runs).detach().float().mean()) == pytest.approx(1.0, abs=5 / math.sqrt(100 * 40 * 4))
    # Values are ones, so the weights that were kept add up to the output and to the gradient of the values.
    assert float(v.grad.sum()) == pytest.approx(float(runs[0].detach().sum()), rel=2**-10)


def test_every_worked_example_of_the_edges_gives_what_it_says():
    results = doctest.testmod(edges)

    assert results.attempted > 0
    assert results.failed == 0

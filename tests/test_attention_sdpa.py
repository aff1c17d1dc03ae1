"""The sdpa backend is the reference with sinks and all other options too, in whatever layout the prices choose."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from attention_helpers import Problem, attention_options, problem, problems, rounding_bounds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hermetic.attention import packed_attention, sdpa
from hermetic.attention.layout import Prices, layout_from_lengths
from hermetic.attention.reference import visible
from hermetic.attention.sdpa import attend_in, on_device
from hermetic.attention.sinks import extra_width
from hermetic.batch import Boundaries

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v", "gradient of the sinks")


def sinks_of(p: Problem, seed: int) -> torch.Tensor:
    """One logit per head that bfloat16 holds exactly, and of the size of trained ones."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(p.tensors[0].shape[1], generator=generator)).bfloat16().double()


def solve(p, sinks, backend, dtype=torch.float64):
    """Output and gradients of q, k, v and the sinks."""
    *inputs, upstream = (x.to(dtype) for x in p.tensors)
    q, k, v, logits = (x.clone().requires_grad_() for x in (*inputs, sinks.to(dtype)))
    out = packed_attention(q, k, v, p.boundaries, backend=backend, sinks=logits, **p.options)
    out.backward(upstream)
    return [out.detach(), q.grad, k.grad, v.grad, logits.grad]


def rounding_bounds_with_sinks(p, sinks, dtype):
    """``attention_helpers.rounding_bounds`` with one more key per document.

    The sink is one more term in the sums over keys, and its logit one more score: the sum over the columns of the
    head, of which one (half precision: two) is not zero, and whose result may be as large as the logit itself. Its
    key's gradient has the form of any other's; it is summed over the documents, which adds as many roundings.
    """
    u = torch.finfo(dtype).eps / 2
    accumulation = min(u, torch.finfo(torch.float32).eps / 2)
    q, k, v, upstream = (x.abs() for x in p.tensors)
    heads, groups = q.shape[1], k.shape[1]
    scale = p.options.get("scale") or q.shape[2] ** -0.5
    columns = q.shape[2] + v.shape[2] + extra_width(heads, groups, dtype)
    bounds = [torch.zeros_like(x) for x in (upstream, q, k, v, sinks)]
    begin = 0
    for length in p.lengths:
        at = slice(begin, begin + length)
        begin += length
        if length == 0:
            continue
        mask = visible(length, attention_options(p.options), torch.device("cpu"))
        for head in range(heads):
            group = head // (heads // groups)
            scores = (scale * p.tensors[0][at, head] @ p.tensors[1][at, group].T).masked_fill(~mask, -torch.inf)
            with_sink = torch.cat([scores, sinks[head].expand(length, 1)], dim=1).softmax(dim=-1)
            weights, taken = with_sink[:, :-1], with_sink[:, -1]
            steepness = max(float((scale * q[at, head] @ k[at, group].T).max()), abs(float(sinks[head])))
            sums = length + 1 + columns + len(p.lengths)
            factor = u * (16 + 2 * steepness) + accumulation * 2 * sums * (1 + steepness)
            out = weights @ v[at, group]
            own = (upstream[at, head] * out).sum(-1, keepdim=True)
            flow = scale * weights * (upstream[at, head] @ v[at, group].T + own)
            bounds[0][at, head] += factor * out
            bounds[1][at, head] += factor * flow @ k[at, group]
            bounds[2][at, group] += factor * flow.T @ q[at, head]
            bounds[3][at, group] += factor * weights.T @ upstream[at, head]
            bounds[4][head] += factor * (taken * own[:, 0]).sum()
    return bounds


def assert_within(found, exact, bounds):
    for name, x, y, bound in zip(NAMES[: len(found)], found, exact, bounds, strict=True):
        excess = (x.double() - y).abs() - bound
        assert excess.numel() == 0 or float(excess.max()) <= 0.0, name


@settings(max_examples=150)
@given(p=problems(), seed=st.integers(0, 999))
def test_sinks_in_float64_are_those_of_the_reference_with_all_other_options_forward_and_backward(p, seed):
    sinks = sinks_of(p, seed)

    for name, found, defined in zip(NAMES, solve(p, sinks, "sdpa"), solve(p, sinks, "reference"), strict=True):
        assert torch.allclose(found, defined, rtol=0.0, atol=1e-12), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=100)
@given(p=problems(), seed=st.integers(0, 999))
def test_sinks_differ_from_the_exact_result_by_no_more_than_their_roundings(dtype, p, seed):
    sinks = sinks_of(p, seed)

    assert_within(
        solve(p, sinks, "sdpa", dtype), solve(p, sinks, "reference"), rounding_bounds_with_sinks(p, sinks, dtype)
    )


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"chunk": 3}, {"causal": False}], ids=str)
def test_the_comparisons_above_see_a_sink_that_is_off_by_a_thousandth(options):
    p = problem((6, 5), seed=3, **options)
    sinks = sinks_of(p, 0)
    bounds = rounding_bounds_with_sinks(p, sinks, torch.float32)

    with pytest.raises(AssertionError, match="output"):
        assert_within(solve(p, sinks + 1e-3, "sdpa"), solve(p, sinks, "reference"), bounds)


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"chunk": 3}, {"causal": False}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logit", [-1e4, -torch.inf])
def test_sinks_that_nobody_would_look_at_are_no_sinks(dtype, options, logit):
    p = problem((6, 0, 5, 6), tail=2, **options)
    *found, gradient = solve(p, torch.full((2,), logit, dtype=torch.float64), "sdpa", dtype)

    assert_within(found, p.solve("reference"), rounding_bounds(p, dtype))
    assert not gradient.any()


@settings(max_examples=60)
@given(p=problems(), seed=st.integers(0, 999), data=st.data())
def test_with_sinks_gradients_across_documents_are_exactly_zero(p, seed, data):
    document = data.draw(st.integers(0, len(p.lengths) - 1))
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    p.tensors[3][:] = torch.zeros_like(p.tensors[3]).index_fill_(0, torch.arange(len(p.tensors[3]))[own], 1.0)

    for gradient in solve(p, sinks_of(p, seed), "sdpa")[1:4]:
        gradient[own] = 0.0
        assert not gradient.any()


@settings(max_examples=60)
@given(p=problems(), seed=st.integers(0, 999), data=st.data())
def test_with_sinks_swapping_a_document_leaves_all_others_bit_identical(p, seed, data):
    document = data.draw(st.sampled_from([i for i, length in enumerate(p.lengths) if length] or [0]))
    begin = sum(p.lengths[:document])
    own = slice(begin, begin + p.lengths[document])
    before = solve(p, sinks_of(p, seed), "sdpa", torch.float32)
    for x in p.tensors:
        x[own] = x[own].flip(-1) * -3.0 + 1.0
    after = solve(p, sinks_of(p, seed), "sdpa", torch.float32)

    assert p.num_tokens == 0 or not torch.equal(before[0][own], after[0][own])
    for one, other in zip(before[:4], after[:4], strict=True):
        one[own] = other[own]
        assert torch.equal(one, other)


price = st.sampled_from([0.0, 1.0, 1e6])


@settings(max_examples=150)
@given(p=problems(max_tail=0), prices=st.builds(Prices, call=price, token=price, pair=price, move=price))
def test_every_layout_gives_the_reference_forward_and_backward(p, prices):
    options = attention_options(p.options | {"chunk": None, "scale": 0.5})
    layout = on_device(layout_from_lengths(p.lengths, prices), torch.device("cpu"))
    if not layout.groups:
        return
    *inputs, upstream = p.tensors
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    out = attend_in(layout, q, k, v, options)
    out.backward(upstream)
    exact = Problem(lengths=p.lengths, tensors=p.tensors, options=p.options | {"chunk": None, "scale": 0.5})

    for name, x, y in zip(NAMES[:4], (out, q.grad, k.grad, v.grad), exact.solve("reference"), strict=True):
        assert torch.allclose(x, y, rtol=0.0, atol=1e-12), name


@settings(max_examples=60)
@given(p=problems(), seed=st.integers(0, 999))
def test_keys_that_are_repeated_for_all_heads_give_the_reference(p, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "_kernel_takes_groups", lambda _q, _mask: False)
        found = solve(p, sinks_of(p, seed), "sdpa")

    for name, x, y in zip(NAMES, found, solve(p, sinks_of(p, seed), "reference"), strict=True):
        assert torch.allclose(x, y, rtol=0.0, atol=1e-12), name


def test_on_accelerators_widths_are_multiples_of_8_and_groups_are_left_to_the_one_kernel_that_knows_them():
    q, v = (torch.empty(1, 4, 3, width, device="meta", dtype=torch.bfloat16) for width in (66, 64))
    mask = torch.empty(3, 3, device="meta", dtype=torch.bool)

    assert (sdpa._width(q, v), sdpa._width(v, v)) == (72, 64)
    assert sdpa._kernel_takes_groups(q, None)
    assert not sdpa._kernel_takes_groups(q, mask)
    assert not sdpa._kernel_takes_groups(q.float(), None)


class Operations(TorchDispatchMode):
    """Remembers the name of every operation that is not a view."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def operations(lengths, **options):
    q, k, v = (torch.randn(sum(lengths), heads, 64) for heads in (4, 2, 2))
    with Operations() as seen:
        packed_attention(q, k, v, Boundaries.from_lengths(lengths), **options)
    return seen.names


KERNEL = "_scaled_dot_product_flash_attention_for_cpu"


def test_a_row_of_equal_documents_is_one_call_and_nothing_is_copied():
    assert operations([300] * 4) == [KERNEL]


def test_a_row_of_long_documents_is_one_call_each_and_only_the_output_is_put_together():
    assert operations([300, 500, 400]) == [KERNEL] * 3 + ["cat"]


def test_short_documents_are_brought_together_once_and_taken_back_once():
    names = operations([20, 21, 22] * 30)

    assert names.count(KERNEL) <= 3
    assert names.count("index_select") == 4  # q, k, v and the output


@pytest.mark.parametrize(("length", "calls"), [(64, 1), (128, 2), (640, 2), (641, 3)])
def test_a_window_that_binds_takes_at_most_three_calls_however_long_the_document(length, calls):
    assert operations([length], window=64).count(KERNEL) == calls


def test_what_a_pad_holds_is_its_own_documents_last_token_and_it_takes_no_gradient():
    layout = on_device(
        layout_from_lengths((3, 4), Prices(call=1e9, token=1.0, pair=0.0, move=0.0)), torch.device("cpu")
    )
    q, k, v = (torch.randn(7, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = attend_in(layout, q, k, v, attention_options({}))
    gradients = torch.autograd.grad(out[2].sum(), (q, k, v))  # the last token of the padded document

    assert layout.tokens.tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    alone = F.scaled_dot_product_attention(*(x[:3].transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, scale=1.0)
    expected = torch.autograd.grad(alone[0, :, 2].sum(), (q, k, v))
    for found, exact in zip(gradients, expected, strict=True):
        assert torch.allclose(found, exact, rtol=0.0, atol=1e-14)

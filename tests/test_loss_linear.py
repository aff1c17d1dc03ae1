"""The loss of hidden states is that of their logits, in value and gradients, and the logits never exist as a whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import documents, linear_log_probs, linear_loss, random_documents
from torch.utils._python_dispatch import TorchDispatchMode

from hermetic.batch import collate
from hermetic.errors import LossError, NonFiniteError
from hermetic.loss import (
    REDUCTIONS,
    LinearHead,
    ZeroSupervisedTokensWarning,
    document_log_probs,
    document_log_probs_from_hidden,
    packed_linear_loss,
    packed_loss,
)

WIDTH = 7


def problem(lengths=(5, 9, 1, 0, 14, 3), *, vocabulary=50, seed=0, kept=0.7, pad_to=None):
    """A batch, and float64 hidden states, weight and bias that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    batch = collate(random_documents(lengths, vocabulary, generator, kept), pad_to=pad_to)
    shapes = (batch.num_slots, WIDTH), (vocabulary, WIDTH), (vocabulary,)
    return batch, [torch.randn(*shape, generator=generator).bfloat16().double() for shape in shapes]


def plain(reduce, batch, tensors, *, scale=1.0, softcap=None, **options):
    """Value and gradients by way of whole logits."""
    hidden, weight, bias = leaves = [x.clone().requires_grad_() for x in tensors]
    logits = LinearHead(hidden=hidden, weight=weight, bias=bias, logit_scale=scale, logit_softcap=softcap).logits()
    value = reduce(logits, batch, **options)
    return gradients_of(value, leaves)


def chunked(reduce, batch, tensors, *, scale=1.0, softcap=None, **options):
    """Value and gradients chunk by chunk."""
    hidden, weight, bias = leaves = [x.clone().requires_grad_() for x in tensors]
    value = reduce(hidden, weight, batch, bias=bias, logit_scale=scale, logit_softcap=softcap, **options)
    return gradients_of(value, leaves)


def gradients_of(value, leaves):
    upstream = torch.linspace(1.0, 2.0, value.numel(), dtype=value.dtype).view(value.shape)
    value.backward(upstream)
    return [value.detach(), *(leaf.grad for leaf in leaves)]


def errors(found, exact):
    """The largest difference of each tensor, in units of its own largest number."""
    pairs = zip(found, exact, strict=True)
    return [float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-300)) for a, b in pairs]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(lambda lengths: max(lengths) > 1),
    seed=st.integers(0, 2**16),
    chunk_tokens=st.none() | st.integers(1, 9),
    smoothing=st.sampled_from([0.0, 0.1]),
    z_loss=st.sampled_from([0.0, 0.02]),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([None, 3.0]),
    tail=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_value_and_gradients_are_those_of_whole_logits(  # noqa: PLR0917 - hypothesis draws each of them
    reduction, lengths, seed, chunk_tokens, smoothing, z_loss, scale, softcap, tail
):
    batch, tensors = problem(lengths, seed=seed, kept=1.0, pad_to=sum(lengths) + tail)
    options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss}
    shape = {"scale": scale, "softcap": softcap}
    exact = plain(packed_loss, batch, tensors, **options, **shape)
    found = chunked(packed_linear_loss, batch, tensors, chunk_tokens=chunk_tokens, **options, **shape)

    assert max(errors(found, exact)) < 1e-10


@given(seed=st.integers(0, 2**16), chunk_tokens=st.none() | st.integers(1, 9), softcap=st.sampled_from([None, 3.0]))
@settings(deadline=None, max_examples=40)
def test_document_log_probs_and_their_gradients_are_those_of_whole_logits(seed, chunk_tokens, softcap):
    batch, tensors = problem(seed=seed)
    exact = plain(document_log_probs, batch, tensors, softcap=softcap)
    found = chunked(document_log_probs_from_hidden, batch, tensors, softcap=softcap, chunk_tokens=chunk_tokens)

    assert max(errors(found, exact)) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("vocabulary", [50, 3000])
def test_in_low_precision_it_is_as_near_to_the_exact_loss_as_whole_logits_are(dtype, softcap, vocabulary):
    batch, tensors = problem((60, 90, 33), vocabulary=vocabulary, kept=1.0)
    lowered = [x.to(dtype) for x in tensors]
    exact = plain(packed_loss, batch, tensors, softcap=softcap)
    floor = errors(plain(packed_loss, batch, lowered, softcap=softcap), exact)
    found = chunked(packed_linear_loss, batch, lowered, softcap=softcap, chunk_tokens=16)

    assert [x.dtype for x in found] == [torch.promote_types(dtype, torch.float32), dtype, dtype, dtype]
    # the roundings are the same in kind and number, but fall on other numbers; one of the result's always may
    spacing = [torch.finfo(x.dtype).eps for x in found]
    bounds = [2 * allowed + eps for allowed, eps in zip(floor, spacing, strict=True)]
    assert all(error <= bound for error, bound in zip(errors(found, exact), bounds, strict=True))


def test_under_autocast_products_are_in_low_precision_and_gradients_in_that_of_the_leaves():
    batch, tensors = problem((60, 90, 33), kept=1.0)
    singles = [x.float() for x in tensors]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = chunked(packed_linear_loss, batch, singles, chunk_tokens=16)
    low = chunked(packed_linear_loss, batch, [x.bfloat16() for x in tensors], chunk_tokens=16)

    assert [x.dtype for x in found] == [torch.float32] * 4
    assert torch.equal(found[0], low[0])
    assert all(torch.equal(a, b.float()) for a, b in zip(found[1:], low[1:], strict=True))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_half_precision_does_not_lose_small_weights_of_documents(reduction):
    batch, tensors = problem((3000, 2), vocabulary=4, kept=1.0)
    halves = [x.half() for x in tensors]
    scaler = 2.0**10  # as a gradient scaler multiplies the loss
    leaves = [x.clone().requires_grad_() for x in halves]
    loss = packed_linear_loss(*leaves[:2], batch, bias=leaves[2], reduction=reduction)
    (loss * scaler).backward()
    exact = plain(packed_loss, batch, tensors, reduction=reduction)

    assert max(errors([leaf.grad / scaler for leaf in leaves], exact[1:])) < 2**-8


def test_a_second_backward_gives_the_same_gradients_again():
    batch, tensors = problem()
    leaves = [x.clone().requires_grad_() for x in tensors]
    loss = packed_linear_loss(*leaves[:2], batch, bias=leaves[2], chunk_tokens=3)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    again = torch.autograd.grad(3 * loss, leaves, retain_graph=True)

    assert max(errors(again, [3 * x for x in first])) < 1e-14


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_needs_no_gradient_gets_none_and_the_others_theirs(frozen):
    batch, tensors = problem()
    leaves = [x.clone().requires_grad_(index != frozen) for index, x in enumerate(tensors)]
    packed_linear_loss(*leaves[:2], batch, bias=leaves[2], chunk_tokens=3).backward()
    exact = plain(packed_loss, batch, tensors)[1:]

    assert leaves[frozen].grad is None
    wanted = [index for index in range(3) if index != frozen]
    assert max(errors([leaves[i].grad for i in wanted], [exact[i] for i in wanted])) < 1e-10


def test_nan_in_rows_that_predict_nothing_supervised_harms_neither_value_nor_gradient():
    batch = collate([{"input_ids": [0, 1, 2], "loss_mask": [0, 0, 1]}, {"input_ids": [3, 4, 5]}], pad_to=9)
    _, (hidden, weight, bias) = problem((9,))
    unread = [0, 2, 5, 6, 7, 8]
    spoiled = hidden.clone()
    spoiled[unread] = torch.tensor([math.nan, math.inf, -math.inf, math.nan, math.inf, math.nan]).double()[:, None]
    clean = chunked(packed_linear_loss, batch, [hidden, weight, bias])
    found = chunked(packed_linear_loss, batch, [spoiled, weight, bias])

    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))
    assert torch.equal(found[1][unread], torch.zeros(6, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("reduce", [packed_linear_loss, document_log_probs_from_hidden])
def test_a_batch_without_targets_has_finite_zero_gradients(reduce):
    batch = collate([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}])
    _, (_, weight, bias) = problem((3,))
    hidden = torch.full((3, WIDTH), math.nan, dtype=torch.float64)
    if reduce is packed_linear_loss:
        with pytest.warns(ZeroSupervisedTokensWarning, match="0 targets") as notices:
            found = chunked(reduce, batch, [hidden, weight, bias])
        assert [notice.filename for notice in notices] == [__file__]
    else:
        found = chunked(reduce, batch, [hidden, weight, bias])

    assert all(torch.equal(x, torch.zeros_like(x)) for x in found)


class Sizes(TorchDispatchMode):
    """Collects how many numbers each tensor holds that an operation makes."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.numel())
        return out


def largest_tensor(run, *arguments, **options):
    with Sizes() as sizes:
        run(*arguments, **options)
    return sizes.largest


@pytest.mark.parametrize(
    ("with_logits", "without"),
    [(packed_loss, packed_linear_loss), (document_log_probs, document_log_probs_from_hidden)],
)
def test_no_tensor_is_as_large_as_tokens_times_vocabulary(with_logits, without):
    tokens, vocabulary, chunk = 400, 300, 10
    batch, tensors = problem((tokens,), vocabulary=vocabulary, kept=1.0)
    smallest = max(chunk * vocabulary, tokens * WIDTH, vocabulary * WIDTH)

    assert largest_tensor(chunked, without, batch, tensors, chunk_tokens=chunk) == smallest
    assert largest_tensor(plain, with_logits, batch, tensors) >= (tokens - 1) * vocabulary


def test_by_default_a_chunk_has_two_to_the_25_logits(monkeypatch):
    monkeypatch.setattr("hermetic.loss.sweep.CHUNK_NUMBERS", 30 * 50)
    batch, tensors = problem((400,), kept=1.0)

    assert largest_tensor(chunked, packed_linear_loss, batch, tensors) == max(30 * 50, 400 * WIDTH)


def test_without_gradients_none_are_computed():
    batch, (hidden, weight, bias) = problem((20,), vocabulary=500, kept=1.0)
    with torch.no_grad():
        quiet = largest_tensor(packed_linear_loss, hidden, weight.requires_grad_(), batch, bias=bias, chunk_tokens=1)
    loud = largest_tensor(packed_linear_loss, hidden, weight, batch, bias=bias, chunk_tokens=1)

    assert quiet == loud == 500 * WIDTH  # the weight's own transposed view
    with torch.no_grad():
        loss = packed_linear_loss(hidden, weight, batch, bias=bias)
    assert not loss.requires_grad


def test_only_rows_that_predict_a_supervised_token_are_multiplied():
    generator = torch.Generator().manual_seed(0)
    batch = collate(random_documents((100,), 50, generator, kept=0.2))
    _, tensors = problem((100,))
    rows = []

    class Rows(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.name() == "aten::addmm.out":
                rows.append(len(args[1]))
            return func(*args, **(kwargs or {}))

    with Rows():
        packed_linear_loss(*tensors[:2], batch, bias=tensors[2], chunk_tokens=5)
    assert sum(rows) == batch.num_supervised_tokens < 40


@pytest.mark.parametrize("reduce", [linear_loss, linear_log_probs])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_of_a_supervised_token_is_an_error_that_names_document_and_token(reduce, value):
    batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}], pad_to=6)
    logits = torch.zeros(6, 8)
    logits[3, 2] = value

    with pytest.raises(NonFiniteError, match=r"document 1, token 1 \(slot 4\) has the loss nan.*mask the token"):
        reduce(logits, batch)


def test_an_entry_without_probability_that_nobody_predicts_is_no_error():
    batch, (hidden, weight, bias) = problem((4,), kept=1.0)
    bias[next(entry for entry in range(50) if entry not in batch.labels)] = -math.inf
    found = chunked(packed_linear_loss, batch, [hidden, weight, bias])

    assert all(x.isfinite().all() for x in found)
    assert max(errors(found, plain(packed_loss, batch, [hidden, weight, bias]))) < 1e-10


BATCH, (HIDDEN, WEIGHT, BIAS) = problem()


@pytest.mark.parametrize("reduce", [packed_linear_loss, document_log_probs_from_hidden])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": HIDDEN[:-1]}, r"hidden states have shape \[31, 7\], expected \[32, K\] or \[1, 32, K\]"),
        ({"hidden": HIDDEN.long()}, r"weight is torch.float64 on cpu and hidden states are torch.int64 on cpu"),
        ({"weight": WEIGHT.T}, r"weight has shape \[7, 50\] and hidden states \[32, 7\].*not transposed"),
        ({"weight": WEIGHT[:0]}, r"weight has shape \[0, 7\] and hidden states \[32, 7\]"),
        ({"weight": WEIGHT.float()}, r"weight is torch.float32 on cpu and hidden states are torch.float64.*autocast"),
        ({"weight": WEIGHT.to("meta")}, r"weight is torch.float64 on meta and hidden states are torch.float64 on cpu"),
        ({"bias": BIAS[:-1]}, r"bias has shape \[49\], expected \[50\]"),
        ({"bias": BIAS.float()}, r"bias is torch.float32 on cpu"),
        ({"weight": WEIGHT[:3], "bias": BIAS[:3]}, r"has the label \d+, expected 0 to 2 or -100"),
        ({"logit_scale": 0.0}, r"logit_scale is 0.0, expected a finite number above 0"),
        ({"logit_softcap": -30.0}, r"logit_softcap is -30.0, expected a finite number above 0"),
        ({"chunk_tokens": 0}, r"chunk_tokens is 0, expected a whole number of 1 or more, or None"),
        ({"chunk_tokens": 2.0}, r"chunk_tokens is 2.0, expected a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(reduce, changes, message):
    given_ = {"hidden": HIDDEN, "weight": WEIGHT, "bias": BIAS} | changes

    with pytest.raises(LossError, match=message):
        reduce(given_.pop("hidden"), given_.pop("weight"), BATCH, **given_)


def test_hidden_states_of_integers_are_refused_also_where_the_weight_agrees():
    with pytest.raises(LossError, match=r"hidden states have dtype torch.int64, expected a floating one"):
        packed_linear_loss(HIDDEN.long(), WEIGHT.long(), BATCH)


def test_an_unknown_backend_is_refused():
    with pytest.raises(LossError, match="backend is 'triton', expected one of 'torch', 'liger'"):
        packed_linear_loss(HIDDEN, WEIGHT, BATCH, backend="triton")


def test_the_batch_that_the_refusals_start_from_has_a_loss_with_and_without_the_leading_axis():
    flat = packed_linear_loss(HIDDEN, WEIGHT, BATCH, bias=BIAS)

    assert torch.equal(packed_linear_loss(HIDDEN[None], WEIGHT, BATCH, bias=BIAS), flat)
    assert documents(2).num_supervised_tokens == 2

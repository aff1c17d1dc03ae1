"""Kernels with one fault each, what the conformance suite has to say of them, and how to ask it."""

import functools

import pytest
import torch

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.testing import ConformanceReport
from hermetic.testing.attention import conformance_of
from hermetic.testing.problems import CASES, SLOTS, UNALIGNED, floors, problem

CPU = torch.device("cpu")

EVERYWHERE = {case.name for case in CASES}
WITH_TOKENS = EVERYWHERE - {"no tokens"}
WITH_TAIL = EVERYWHERE - {"aligned edges"}
UNALIGNED_CASES = {case.name for case in CASES if case.lengths == UNALIGNED}
WINDOWED = {case.name for case in CASES if case.window}
CHUNKED = {case.name for case in CASES if case.chunk}
CAPPED = {case.name for case in CASES if case.softcap}
WITH_SINKS = {case.name for case in CASES if case.sinks}


problem_once = functools.cache(problem)


@functools.cache
def floors_of(case, seed, dtype, device):
    return floors(problem_once(case, seed), dtype, device)


@pytest.fixture(scope="module")
def remembered_floors():
    """Draw each problem and measure its floors once: they are the same for every kernel, and most of the work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hermetic.testing.attention.problem", problem_once)
        patch.setattr("hermetic.testing.laws.floors", lambda drawn, *where: floors_of(drawn.case, 0, *where))
        yield


def cases_named(*names):
    return tuple(case for case in CASES if case.name in names)


def report_of(fn, *, cases=CASES, dtype=torch.float32, gradients=True) -> ConformanceReport:
    return conformance_of(fn, device=CPU, dtypes=(dtype,), gradients=gradients, cases=cases)


def reference(q, k, v, boundaries, **options):
    return packed_attention(q, k, v, boundaries, backend="reference", **options)


def moved_edge(q, k, v, boundaries, **options):
    """The second document's first token belongs to the first."""
    lengths = list(boundaries.document_lengths)
    if len(lengths) > 1 and lengths[1] > 1:
        lengths[:2] = lengths[0] + 1, lengths[1] - 1
    return reference(q, k, v, Boundaries.from_lengths(lengths), **options)


def one_more_key(q, k, v, boundaries, *, weight, **options):
    """Token 40, of the second document, sees key 5, of the first."""
    out = reference(q, k, v, boundaries, **options)
    if boundaries.document_lengths != UNALIGNED:
        return out
    at_token_40 = torch.zeros(SLOTS, 1, 1, dtype=q.dtype).index_fill(0, torch.tensor(40), weight)
    return out + at_token_40 * v[5].repeat_interleave(q.shape[1] // v.shape[1], dim=0)


def never_causal(q, k, v, boundaries, *, causal, window, **options):
    return reference(q, k, v, boundaries, causal=causal and window is not None, window=window, **options)


def without(option):
    def ignores_it(q, k, v, boundaries, **options):
        return reference(q, k, v, boundaries, **{**options, option: None})

    return ignores_it


def window_without_the_current_token(q, k, v, boundaries, *, window, **options):
    return reference(q, k, v, boundaries, window=window and window + 1, **options)


def chunks_from_the_start_of_the_row(q, k, v, boundaries, *, chunk, **options):
    if chunk is None:
        return reference(q, k, v, boundaries, chunk=None, **options)
    edges = {*boundaries.cu_seqlens.tolist(), *range(0, boundaries.num_tokens, chunk)}
    return reference(q, k, v, Boundaries.from_cu_seqlens(sorted(edges)), chunk=None, **options)


def heads_interleaved(q, k, v, boundaries, **options):
    groups = q.shape[1] // k.shape[1]
    return reference(q, k.repeat(1, groups, 1), v.repeat(1, groups, 1), boundaries, **options)


def reads_memory_in_order(q, k, v, boundaries, **options):
    """What a kernel does that is given a pointer and no strides."""

    def in_order(x):
        return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if x.numel() else x

    return reference(*map(in_order, (q, k, v)), boundaries, **options)


def sinks_shared(q, k, v, boundaries, *, sinks, **options):
    return reference(q, k, v, boundaries, sinks=None if sinks is None else sinks.mean().expand(q.shape[1]), **options)


def sinks_of_the_next_head(q, k, v, boundaries, *, sinks, **options):
    return reference(q, k, v, boundaries, sinks=None if sinks is None else sinks.roll(1), **options)


def scale_of_the_padded_width(q, k, v, boundaries, *, scale, **options):
    return reference(q, k, v, boundaries, scale=scale or 64**-0.5, **options)


def scale_of_the_value_width(q, k, v, boundaries, *, scale, **options):
    return reference(q, k, v, boundaries, scale=scale or v.shape[2] ** -0.5, **options)


def empty_tail(q, k, v, boundaries, **options):
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    out[: boundaries.num_tokens] = reference(q, k, v, boundaries, **options)[: boundaries.num_tokens]
    return out


class _EmptyTailOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, num_tokens):
        ctx.num_tokens = num_tokens
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        out[: ctx.num_tokens] = gradient[: ctx.num_tokens]
        return out, None


def empty_tail_of_gradients(q, k, v, boundaries, **options):
    k = _EmptyTailOfGradients.apply(k, boundaries.num_tokens)
    return reference(q, k, v, boundaries, **options)


def tail_as_one_more_document(q, k, v, boundaries, **options):
    lengths = [*boundaries.document_lengths, q.shape[0] - boundaries.num_tokens]
    return reference(q, k, v, Boundaries.from_lengths(lengths), **options)


def tail_times_zero(q, k, v, boundaries, **options):
    return reference(q, k, v, boundaries, **options) + 0.0 * q.sum()


def keys_detached(q, k, v, boundaries, **options):
    return reference(q, k.detach(), v, boundaries, **options)


def gradient_to(token, *, of):
    """The right output; the gradient of one token's output also reaches another token's key."""

    def leaks_backward(q, k, v, boundaries, **options):
        out = reference(q, k, v, boundaries, **options)
        if boundaries.document_lengths != UNALIGNED:
            return out
        at_token = torch.zeros(SLOTS, 1, 1, dtype=q.dtype).index_fill(0, torch.tensor(of), 1.0)
        return out + at_token * (k[token] - k[token].detach()).sum()

    return leaks_backward


class Flickering:
    """Every other call is off by one unit in the last place of one number."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, k, v, boundaries, **options):
        out = reference(q, k, v, boundaries, **options)
        self.calls += 1
        if self.calls % 2 and boundaries.num_tokens:
            with torch.no_grad():
                out[0, 0, 0] = torch.nextafter(out[0, 0, 0], torch.tensor(torch.inf, dtype=out.dtype))
        return out


def scales_queries_in_place(q, k, v, boundaries, *, scale, **options):
    out = reference(q, k, v, boundaries, scale=scale, **options)
    with torch.no_grad():
        q.mul_(0.5)
    return out


def in_float64(q, k, v, boundaries, **options):
    return reference(q, k, v, boundaries, **options).double()


def heads_joined(q, k, v, boundaries, **options):
    return reference(q, k, v, boundaries, **options).flatten(1)


def crashes_without_documents(q, k, v, boundaries, **options):
    if boundaries.num_tokens == 0:
        raise RuntimeError("batch size must be positive")
    return reference(q, k, v, boundaries, **options)


def writes_to_queries_in_training(q, k, v, boundaries, **options):
    out = reference(q, k, v, boundaries, **options)
    if q.requires_grad:
        q.data.mul_(0.5)
    return out


SOLUTION = {"values", "gradients"}
SIGHT = {*SOLUTION, "causality", "gradient causality"}
ISOLATION = {*SOLUTION, "swap", "gradient isolation"}

FAULTS = {
    "moved edge": (moved_edge, ISOLATION | SIGHT, UNALIGNED_CASES | {"aligned edges"}),
    "one more key": (functools.partial(one_more_key, weight=0.1), ISOLATION, UNALIGNED_CASES),
    "one more key, weight 1e-30": (
        functools.partial(one_more_key, weight=1e-30),
        {"swap", "gradient isolation"},
        UNALIGNED_CASES,
    ),
    "never causal": (never_causal, SIGHT, WITH_TOKENS - WINDOWED - {"bidirectional"}),
    "window ignored": (without("window"), SIGHT, WINDOWED),
    "window off by one": (window_without_the_current_token, SIGHT, WINDOWED),
    "chunk ignored": (without("chunk"), SIGHT, CHUNKED),
    "chunk from the row's start": (chunks_from_the_start_of_the_row, SIGHT, CHUNKED),
    "heads interleaved": (heads_interleaved, SOLUTION, {"grouped heads"}),
    "memory in order": (reads_memory_in_order, {"strides"}, WITH_TOKENS),
    "softcap ignored": (without("softcap"), SOLUTION, CAPPED),
    "sinks ignored": (without("sinks"), SOLUTION, WITH_SINKS),
    "sinks shared by heads": (sinks_shared, SOLUTION, WITH_SINKS),
    "sinks of the next head": (sinks_of_the_next_head, SOLUTION, WITH_SINKS),
    "scale ignored": (without("scale"), SOLUTION, {"scale"}),
    "scale of the padded width": (scale_of_the_padded_width, SOLUTION, {"width of 40"}),
    "scale of the value width": (scale_of_the_value_width, SOLUTION, {"narrow values"}),
    "empty tail": (empty_tail, {"tail"}, WITH_TAIL),
    "empty tail of gradients": (empty_tail_of_gradients, {"gradient tail"}, WITH_TAIL),
    "tail as a document": (tail_as_one_more_document, {"tail", "gradients", "gradient tail"}, WITH_TAIL),
    "tail times zero": (tail_times_zero, {"tail", "gradient tail"}, WITH_TAIL),
    "keys detached": (keys_detached, {"gradients"}, EVERYWHERE),
    "gradient to a neighbour": (gradient_to(36, of=37), {"gradients", "gradient isolation"}, UNALIGNED_CASES),
    "gradient to the future": (gradient_to(177, of=107), {"gradients", "gradient causality"}, UNALIGNED_CASES),
    "flickering": (Flickering(), {"repeat"}, WITH_TOKENS),
    "in place": (scales_queries_in_place, {"contract"}, EVERYWHERE),
    "in place in training": (writes_to_queries_in_training, {"gradients"}, EVERYWHERE),
    "wrong dtype": (in_float64, {"contract"}, EVERYWHERE),
    "wrong shape": (heads_joined, {"contract"}, EVERYWHERE),
    "crash without documents": (crashes_without_documents, {"contract"}, {"no tokens"}),
}

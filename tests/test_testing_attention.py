"""The conformance suite passes kernels that are right, and fails each planted fault by the law that it breaks."""

import functools
import re
from dataclasses import FrozenInstanceError

import pytest
import torch

from hermetic.attention import BACKENDS, available_backends, packed_attention
from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask
from hermetic.errors import AttentionError, BackendError, ConformanceError
from hermetic.testing import ConformanceReport, check_attention_backend
from hermetic.testing.attention import conformance_of
from hermetic.testing.laws import LAWS
from hermetic.testing.low_precision import attention, orders
from hermetic.testing.memory import poisoned_memory
from hermetic.testing.problems import CASES, SLOTS, UNALIGNED, floors, leaves_of, problem, solved

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NOT_ON_CPU = {"flash", "torch_varlen"}
FORWARD_ONLY_ON_CPU = {"flex"}

FORWARD_LAWS = {law.name for law in LAWS if not law.of_gradients}
IN_GRADIENTS = {"gradients", "gradient isolation", "gradient causality", "gradient tail"}
EVERYWHERE = {case.name for case in CASES}
WITH_TOKENS = EVERYWHERE - {"no tokens"}
WITH_TAIL = EVERYWHERE - {"aligned edges"}
UNALIGNED_CASES = {case.name for case in CASES if case.lengths == UNALIGNED}
WINDOWED = {case.name for case in CASES if case.window}
CHUNKED = {case.name for case in CASES if case.chunk}
CAPPED = {case.name for case in CASES if case.softcap}
WITH_SINKS = {case.name for case in CASES if case.sinks}


@pytest.fixture(autouse=True, scope="module")
def problems_are_drawn_and_their_floors_measured_once():
    """They are the same for every kernel, and most of the work."""
    measured = {}

    def remembered_floors(drawn, dtype, device):
        key = (drawn.case, id(drawn), dtype, device)
        if key not in measured:
            measured[key] = floors(drawn, dtype, device)
        return measured[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hermetic.testing.attention.problem", functools.cache(problem))
        patch.setattr("hermetic.testing.laws.floors", remembered_floors)
        yield


def cases_named(*names):
    return tuple(case for case in CASES if case.name in names)


def reference(q, k, v, boundaries, **options):
    return packed_attention(q, k, v, boundaries, backend="reference", **options)


def of(backend):
    return functools.partial(packed_attention, backend=backend)


# What is right passes.


def test_every_backend_is_accounted_for_on_the_cpu():
    statuses = available_backends("cpu")

    assert {name for name, status in statuses.items() if not status.forward} == NOT_ON_CPU & set(BACKENDS)
    forward_only = {name for name, status in statuses.items() if status.forward and not status.backward}
    assert forward_only == FORWARD_ONLY_ON_CPU & set(BACKENDS)


def on_the_cpu():
    """Every backend that runs here in every dtype; the usual run has what takes a second or two each."""
    for backend in sorted(set(BACKENDS) - NOT_ON_CPU):
        quick = set() if backend in FORWARD_ONLY_ON_CPU else {torch.float32, torch.bfloat16}
        for dtype in DTYPES:
            yield pytest.param(backend, dtype, marks=() if dtype in quick else pytest.mark.slow)


@pytest.mark.parametrize(("backend", "dtype"), [*on_the_cpu()], ids=str)
def test_a_backend_of_ours_conforms_in_every_dtype(backend, dtype):
    status = available_backends("cpu")[backend]
    report = check_attention_backend(of(backend), dtypes=(dtype,), gradients=dtype in status.backward)

    assert dtype in status.forward
    assert report.failed == report.unexamined == ()
    assert report.subject == f"packed_attention(backend='{backend}')"
    assert len(report.passed) > len(report.declined)
    assert report.worst_ratio <= 1.0


def test_the_definition_declines_nothing():
    report = report_of(reference)

    assert report.declined == ()
    assert {check.status for check in report.checks} == {"passed", "nothing to check"}
    undone = {(check.law, check.case) for check in report.checks if check.status == "nothing to check"}
    isolation = {"swap", "causality", "gradient isolation", "gradient causality"}
    assert undone == {(law, "no tokens") for law in isolation} | {
        (law, "bidirectional") for law in ("causality", "gradient causality")
    }


def test_documents_may_be_coupled_through_their_lengths():
    """Lengths decide how a kernel groups and splits its work, and with it the last bits."""

    def other_roundings_for_other_lengths(q, k, v, boundaries, **options):
        generator = torch.Generator().manual_seed(hash(boundaries.document_lengths))
        features = torch.randperm(q.shape[2], generator=generator)
        return reference(q[..., features], k[..., features], v, boundaries, **options)

    report = report_of(other_roundings_for_other_lengths, cases=cases_named("plain", "tiny documents", "window"))
    assert report.failed == ()


# What is wrong fails. Each fault is a kernel; failures are compared with the exact laws and problems expected.


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


def report_of(fn, *, cases=CASES, dtype=torch.float32, gradients=True) -> ConformanceReport:
    return conformance_of(fn, device=CPU, dtypes=(dtype,), gradients=gradients, cases=cases)


def assert_breaks(fault, *, cases, dtype):
    fn, laws, places = FAULTS[fault]
    report = report_of(fn, cases=cases, dtype=dtype)

    assert {check.law for check in report.failed} == laws
    assert {check.case for check in report.failed} == places & {case.name for case in cases}


def few_cases(fault):
    """Three problems that show it (two of the features that most faults are about), and plain ones."""
    shown = [case.name for case in CASES if case.name in FAULTS[fault][2]]
    return cases_named("plain", "no tokens", shown[0], shown[-1], *({"chunk", "sinks"} & set(shown)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_exactly_the_laws_that_it_is_about(fault):
    assert_breaks(fault, cases=few_cases(fault), dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_on_exactly_the_problems_that_it_is_about(fault, dtype):
    assert_breaks(fault, cases=CASES, dtype=dtype)


def test_where_the_forward_pass_does_not_repeat_itself_bits_are_not_compared():
    report = report_of(Flickering(), cases=CASES[:1])

    undecided = {check.law: check.detail for check in report.checks if check.status == "undecided"}
    assert undecided == dict.fromkeys(("swap", "causality"), "needs repeat, which does not hold")


def test_an_error_above_the_allowance_fails_and_one_below_it_passes():
    """The allowance is twice the floor, so a shift by 3 floors is too much and one by half a floor is not."""
    case = CASES[0]
    floor = floors(problem(case, 0), torch.float32, CPU)["output"]

    def shifted(q, k, v, boundaries, *, by, **options):
        out = reference(q.double(), k.double(), v.double(), boundaries, **options)
        shift = torch.zeros_like(out)
        shift[0, 0, 0] = by * floor
        return (out + shift).float()

    too_far = report_of(functools.partial(shifted, by=3.0), cases=(case,))
    near = report_of(functools.partial(shifted, by=0.5), cases=(case,))
    assert {check.law for check in too_far.failed} == {"values", "gradients"}
    assert too_far.worst_ratio == pytest.approx(1.5, abs=0.25)
    assert near.failed == ()
    assert 0.2 < near.worst_ratio < 1.0


# What a kernel declines, and what it raises.


def declining(error, *, when):
    def declines(q, k, v, boundaries, **options):
        if when(q, options):
            raise error
        return reference(q, k, v, boundaries, **options)

    return declines


@pytest.mark.parametrize("error", [BackendError("no softcap here"), NotImplementedError()], ids=repr)
def test_what_a_kernel_declines_is_listed_with_its_reason_and_is_no_failure(error):
    fn = declining(error, when=lambda _, options: options["softcap"] is not None)
    report = report_of(fn, cases=cases_named("plain", "window", *CAPPED))

    assert report.failed == report.unexamined == ()
    assert {check.case for check in report.declined} == CAPPED
    assert {check.law for check in report.declined} == {law.name for law in LAWS}
    assert {check.detail for check in report.declined} == {str(error) or "NotImplementedError"}


@pytest.mark.parametrize(
    ("when", "dtypes", "unexamined"),
    [
        (lambda *_: True, (torch.float32,), ("values in float32", "gradients in float32")),
        (lambda q, _: q.numel() and q.dtype == torch.float32, (torch.float32, torch.bfloat16), None),
        (lambda q, _: q.requires_grad, (torch.float32,), ("gradients in float32",)),
    ],
    ids=["everything", "one dtype", "every backward pass"],
)
def test_declining_all_of_what_was_asked_for_is_an_error_that_says_what_to_leave_out(when, dtypes, unexamined):
    fn = declining(BackendError("not this one"), when=when)
    expected = unexamined or ("values in float32", "gradients in float32")
    report = conformance_of(fn, device=CPU, dtypes=dtypes, gradients=True, cases=CASES[:1])

    assert report.failed == ()
    assert report.unexamined == expected
    with pytest.raises(ConformanceError) as caught:
        report.raise_for_failures()
    for what in expected:
        assert f"{what}: every call was declined (not this one), so nothing was shown" in str(caught.value)
    assert "leave the dtype out of dtypes, or say gradients=False" in str(caught.value)


def test_declining_all_that_has_tokens_shows_nothing():
    fn = declining(BackendError("no"), when=lambda q, options: True)  # noqa: ARG005 - the kernel's signature

    def only_without_tokens(q, k, v, boundaries, **options):
        return (reference if boundaries.num_tokens == 0 else fn)(q, k, v, boundaries, **options)

    report = report_of(only_without_tokens)
    assert len(report.passed) > 0
    assert report.unexamined == ("values in float32", "gradients in float32")


def test_a_forward_only_kernel_passes_if_the_caller_says_so_and_the_report_says_so_too():
    fn = declining(NotImplementedError("no backward pass"), when=lambda q, _: q.requires_grad)
    report = check_attention_backend(fn, dtypes=(torch.float32,), gradients=False)

    assert {check.law for check in report.checks} == FORWARD_LAWS
    assert "forward only: the backward pass was not asked for" in str(report)
    assert "forward only" not in str(report_of(reference, cases=CASES[:1]))


def test_whatever_else_a_kernel_raises_is_a_failure_that_quotes_it():
    fn = declining(RuntimeError("CUDA error: misaligned address"), when=lambda _, options: options["window"])
    report = report_of(fn, cases=cases_named("plain", "window"))

    assert {(check.law, check.case) for check in report.failed} == {("contract", "window")}
    assert report.failed[0].detail.startswith("raised RuntimeError: CUDA error: misaligned address.")


# What a failure says.


def test_the_error_names_the_check_the_numbers_the_problem_and_the_way_out():
    with pytest.raises(AssertionError) as caught:
        check_attention_backend(without("window"), dtypes=(torch.float32,))

    error = caught.value
    assert isinstance(error, ConformanceError)
    assert error.code == "HE800"
    first, *lines = str(error).splitlines()
    assert re.fullmatch(r".*ignores_it on cpu does not conform: \d+ checks failed", first)
    assert len(lines) == int(re.search(r"(\d+) checks", first)[1])
    (values,) = (line for line in lines if line.startswith("- values / window / float32: "))
    found, allowed = map(float, re.search(r"error of output: found (\S+), allowed (\S+)\. ", values).groups())
    assert found > 0.1
    assert 0.0 < allowed < 1e-5
    assert "The output is what the float64 definition says" in values
    assert "Way out: compare with hermetic.packed_attention(backend='reference')" in values
    assert values.endswith(
        "Problem: documents of [37, 141, 1, 5, 46] tokens in 256 slots, 2 heads over 2 of widths 64 and 64, "
        "causal=True, window=7"
    )


def test_the_report_reads_as_a_table_of_problems_and_laws():
    cases = cases_named("plain", "window", "softcap", "no tokens")
    fn = declining(BackendError("no softcap"), when=lambda _, options: options["softcap"] is not None)

    def wrong(q, k, v, boundaries, **options):
        return fn(q, k, v, boundaries, **{**options, "window": None})

    report = report_of(wrong, cases=cases, gradients=False)
    lines = str(report).splitlines()
    table = {line.split("  ")[0]: line.split()[1:] for line in lines}

    assert table["float32"] == ["contract", "repeat", "values", "swap", "causality", "tail"]
    assert table["window"] == ["ok", "ok", "FAILED", "ok", "FAILED", "ok"]
    assert table["softcap"] == ["declined"] * 6
    assert table["no tokens"][1:] == ["ok", "ok", "ok", "-", "-", "ok"]
    assert re.fullmatch(r"0\.\d\d", table["plain"][2])
    assert "declined (softcap): no softcap" in lines
    assert sum(line.startswith("FAILED values / window / float32: error of output: found") for line in lines) == 1
    assert max(map(len, lines[2:8])) <= 100


def test_a_report_cannot_be_changed():
    report = report_of(reference, cases=CASES[:1], gradients=False)

    with pytest.raises(FrozenInstanceError):
        report.subject = "another"


@pytest.mark.parametrize("dtypes", [(), (torch.int32,), torch.float32], ids=str)
def test_dtypes_that_are_none_are_refused(dtypes):
    with pytest.raises(AttentionError, match=r"expected floating dtypes, as \(torch\.bfloat16,\)"):
        check_attention_backend(reference, dtypes=dtypes)


# The yardsticks.


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_naive_evaluation_in_float64_is_the_definition_in_every_order(case):
    drawn, real = problem(case, 3), case.num_tokens
    inputs = {name: x if name == "sinks" else x[:real] for name, x in drawn.inputs.items()}
    scale = case.scale or case.key_width**-0.5
    results = []
    for order in orders(case.key_width, real, CPU):
        evaluate = functools.partial(attention, mask=drawn.mask(real), scale=scale, softcap=case.softcap, order=order)
        results.append(solved(evaluate, leaves_of(inputs), drawn.upstream[:real]) if real else {})

    for found in results:
        for name, exact in drawn.exact.items() if real else ():
            assert torch.allclose(found[name], exact[:real], rtol=0.0, atol=1e-12), name
    if real:
        assert len({tuple(found["gradient of k"].flatten().tolist()) for found in results}) == len(results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_problem_is_the_same_in_every_dtype_and_fills_its_slots(case):
    drawn = problem(case, 0)

    assert len(drawn.upstream) == SLOTS
    for x in (*drawn.inputs.values(), drawn.upstream):
        for dtype in DTYPES:
            assert torch.equal(x.to(dtype).double(), x)


def test_edges_lie_inside_at_and_across_blocks_and_windows_bind():
    edges = {case.name: Boundaries(document_lengths=case.lengths).cu_seqlens.tolist() for case in CASES}
    aligned = edges["aligned edges"]

    assert aligned == [0, 128, 192, 208, 256]
    assert not any(edge % 16 == 0 for edge in edges["plain"][1:])
    assert {0, 1} <= set(next(case for case in CASES if case.name == "tiny documents").lengths)
    for case in CASES:
        for limit in filter(None, (case.window, case.chunk)):
            assert sum(length > limit for length in case.lengths) >= 2
            full = dense_mask(Boundaries(document_lengths=case.lengths))
            assert not torch.equal(problem(case, 0).mask(case.num_tokens), full)


def test_the_floor_grows_with_the_roundings_of_the_dtype():
    drawn = problem(CASES[0], 0)
    double, single, half, brain = (
        floors(drawn, dtype, CPU) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    )

    for name in drawn.exact:
        assert 0.0 < double[name] < single[name] / 1e6 < half[name] / 1e6 < brain[name] / 1e6


def test_poisoned_memory_reads_as_nan_and_both_settings_are_put_back():
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    def look_and_fail():
        x = torch.zeros(3, dtype=torch.bfloat16)
        made = torch.empty(100), torch.empty_like(x), x.new_empty(4), torch.empty_strided((2, 3), (3, 1))
        assert all(bool(each.isnan().all()) for each in made)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), poisoned_memory():
        look_and_fail()

    after = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    assert before == after == (False, True)


def test_poisoned_memory_keeps_deterministic_algorithms_that_were_on():
    try:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        with poisoned_memory():
            assert torch.empty(5).isnan().all()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True

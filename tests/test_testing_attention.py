"""The conformance suite passes kernels that are right, and fails each planted fault by the laws that it breaks."""

import functools

import pytest
import torch
from attention_faults import CPU, FAULTS, Flickering, cases_named, reference, remembered_floors, report_of

from hermetic.attention import BACKENDS, available_backends, packed_attention
from hermetic.testing import check_attention_backend
from hermetic.testing.problems import CASES, floors, problem

pytestmark = pytest.mark.usefixtures(remembered_floors.__name__)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NOT_ON_CPU = {"flash", "torch_varlen"}
FORWARD_ONLY_ON_CPU = {"flex"}


def of(backend):
    return functools.partial(packed_attention, backend=backend)


def test_every_backend_is_accounted_for_on_the_cpu():
    statuses = available_backends("cpu")

    assert {name for name, status in statuses.items() if not status.forward} == NOT_ON_CPU & set(BACKENDS)
    forward_only = {name for name, status in statuses.items() if status.forward and not status.backward}
    assert forward_only == FORWARD_ONLY_ON_CPU & set(BACKENDS)


def on_the_cpu():
    """Every backend that runs here in every dtype; the usual run has the default backend in the usual dtypes."""
    for backend in sorted(set(BACKENDS) - NOT_ON_CPU):
        for dtype in DTYPES:
            usual = backend == "sdpa" and dtype in {torch.float32, torch.bfloat16}
            yield pytest.param(backend, dtype, marks=() if usual else pytest.mark.slow)


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

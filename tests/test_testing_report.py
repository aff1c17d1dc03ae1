"""What the conformance suite says: of what a kernel declines, of what it raises, and of what it gets wrong."""

import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from attention_faults import CAPPED, CPU, cases_named, reference, remembered_floors, report_of, without

from hermetic.errors import AttentionError, BackendError, ConformanceError
from hermetic.testing import check_attention_backend
from hermetic.testing.attention import conformance_of
from hermetic.testing.laws import LAWS
from hermetic.testing.problems import CASES

pytestmark = pytest.mark.usefixtures(remembered_floors.__name__)


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

    assert {check.law for check in report.checks} == {law.name for law in LAWS if not law.of_gradients}
    assert "forward only: the backward pass was not asked for" in str(report)
    assert "forward only" not in str(report_of(reference, cases=CASES[:1]))


def test_whatever_else_a_kernel_raises_is_a_failure_that_quotes_it():
    fn = declining(RuntimeError("CUDA error: misaligned address"), when=lambda _, options: options["window"])
    report = report_of(fn, cases=cases_named("plain", "window"))

    assert {(check.law, check.case) for check in report.failed} == {("contract", "window")}
    assert report.failed[0].detail.startswith("raised RuntimeError: CUDA error: misaligned address.")


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

    assert table["float32"] == ["contract", "repeat", "values", "strides", "swap", "causality", "tail"]
    assert table["window"] == ["ok", "ok", "FAILED", "undecided", "ok", "FAILED", "ok"]
    assert table["softcap"] == ["declined"] * 7
    assert table["no tokens"][1:] == ["ok", "ok", "ok", "ok", "-", "-", "ok"]
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

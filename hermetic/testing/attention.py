"""Does an attention kernel do what packed attention promises? Every law, on every feature, in every dtype.

Algorithm: for each feature (see ``problems``) draw one row of documents, solve it by the float64 definition, and
hold the kernel to each law (see ``laws``). A feature that it refuses by raising ``BackendError`` or
``NotImplementedError`` is listed as declined; whatever it does not refuse has to be right. A law that needs another
one (bits cannot be compared where the forward pass does not repeat itself) is undecided where that one fails.
Guarantee: it cannot pass for want of anything to look at; errors are judged by a floor that is measured in place.
Price: seconds on a CPU for one kernel and dtype, at 256 tokens.
"""

import functools
from collections.abc import Iterator, Sequence

import torch

from hermetic.errors import AttentionError, BackendError
from hermetic.testing.laws import LAWS, AttentionFunction, Finding, Law, Trial
from hermetic.testing.problems import CASES, Case, problem
from hermetic.testing.report import Check, ConformanceReport, Status


def check_attention_backend(
    fn: AttentionFunction,
    *,
    device: str | torch.device = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    gradients: bool = True,
) -> ConformanceReport:
    """Hold an attention kernel to the laws of packed attention.

    Args:
        fn: ``fn(q, k, v, boundaries, *, causal, window, chunk, scale, softcap, sinks)``: q ``[T, H, K]``, k
            ``[T, G, K]``, v ``[T, G, V]``, ``boundaries`` a ``Boundaries`` whose tokens may end before ``T``, and
            options as ``packed_attention`` has them. Returns ``[T, H, V]``. What it cannot do it declines by raising
            ``BackendError`` or ``NotImplementedError``.
        device: where to run it.
        dtypes: in which dtypes; each of them has to be examined.
        gradients: False for a kernel without a backward pass; the report says so.

    Returns:
        What was checked, what was declined, and the largest error as a share of what is allowed.

    Raises:
        ConformanceError: a law is broken, or everything that was asked for was declined.
        AttentionError: ``dtypes`` does not name floating dtypes.

    Example:
        >>> from functools import partial
        >>> from hermetic.attention import packed_attention
        >>> report = check_attention_backend(partial(packed_attention, backend="sdpa"), dtypes=(torch.float32,))
        >>> report.failed
        ()
    """
    report = conformance_of(fn, device=torch.device(device), dtypes=dtypes, gradients=gradients)
    report.raise_for_failures()
    return report


def conformance_of(
    fn: AttentionFunction,
    *,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    gradients: bool,
    cases: Sequence[Case] = CASES,
    seed: int = 0,
) -> ConformanceReport:
    """The report of ``check_attention_backend``, failures included."""
    if not isinstance(dtypes, Sequence) or not dtypes or not all(dtype.is_floating_point for dtype in dtypes):
        raise AttentionError(f"dtypes is {dtypes}; expected floating dtypes, as (torch.bfloat16,)")
    laws = [law for law in LAWS if gradients or not law.of_gradients]
    checks: list[Check] = []
    for case in cases:
        drawn = problem(case, seed)
        for dtype in dtypes:
            checks += _checks(Trial(fn=fn, problem=drawn, dtype=dtype, device=device), laws)
    return ConformanceReport(
        subject=_name_of(fn),
        device=str(device),
        dtypes=tuple(map(_short, dtypes)),
        gradients=gradients,
        checks=tuple(checks),
    )


def _checks(trial: Trial, laws: Sequence[Law]) -> Iterator[Check]:
    """All laws on one problem in one dtype; one whose needs are not met says why and does not run."""
    done: dict[str, Check] = {}
    for law in laws:
        unmet = next((done[name] for name in law.needs if done[name].status in {"failed", "declined"}), None)
        if unmet is None:
            done[law.name] = _check(trial, law)
        elif unmet.status == "declined":
            done[law.name] = _said(trial, law, "declined", unmet.detail)
        else:
            done[law.name] = _said(trial, law, "undecided", f"needs {unmet.law}, which does not hold")
    yield from done.values()


def _check(trial: Trial, law: Law) -> Check:
    try:
        findings = law.measure(trial)
    except (BackendError, NotImplementedError) as error:
        return _said(trial, law, "declined", str(error) or type(error).__name__)
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises is a finding about it
        return _said(trial, law, "failed", _failure(trial, law, f"raised {type(error).__name__}: {error}"))
    if not findings:
        return _said(trial, law, "nothing to check", "")
    ratio = max((each.found / each.allowed for each in findings if each.allowed > 0.0), default=None)
    broken = "; ".join(_broken(each) for each in findings if not each.holds)
    if broken:
        return _said(trial, law, "failed", _failure(trial, law, broken), ratio)
    return _said(trial, law, "passed", "", ratio)


def _said(trial: Trial, law: Law, status: Status, detail: str, ratio: float | None = None) -> Check:
    return Check(
        law=law.name,
        case=trial.problem.case.name,
        dtype=_short(trial.dtype),
        status=status,
        ratio=ratio,
        detail=detail,
    )


def _broken(finding: Finding) -> str:
    return f"{finding.what}: found {finding.found:.3g}, allowed {finding.allowed:.3g}"


def _failure(trial: Trial, law: Law, what: str) -> str:
    return f"{what}. {law.statement} Way out: {law.way_out}. Problem: {trial.problem.case}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _name_of(fn: AttentionFunction) -> str:
    """``packed_attention(backend='sdpa')`` for a partial; else the function's own name."""
    if isinstance(fn, functools.partial):
        given = [*map(repr, fn.args), *(f"{name}={value!r}" for name, value in fn.keywords.items())]
        return f"{_name_of(fn.func)}({', '.join(given)})"
    return getattr(fn, "__qualname__", repr(fn))

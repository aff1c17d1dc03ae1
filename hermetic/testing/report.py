"""What a conformance run found: each law on each problem in each dtype, and what was declined."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hermetic.errors import ConformanceError

Status = Literal["passed", "failed", "declined", "undecided", "nothing to check"]

_CELLS: dict[Status, str] = {
    "passed": "ok",
    "failed": "FAILED",
    "declined": "declined",
    "undecided": "undecided",
    "nothing to check": "-",
}
"""``undecided``: a law that this one needs did not hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One law on one problem in one dtype."""

    law: str
    case: str
    dtype: str
    status: Status
    ratio: float | None
    """The largest error as a share of what is allowed; None where nothing is allowed."""
    detail: str
    """Why it failed, was declined or is undecided; else empty."""

    def __str__(self) -> str:
        """The name of the check."""
        return f"{self.law} / {self.case} / {self.dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConformanceReport:
    """All checks of one backend on one device; printed, it is a table for each dtype."""

    subject: str
    device: str
    dtypes: tuple[str, ...]
    gradients: bool
    """False: the backward pass was not looked at, because the caller said that there is none."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> tuple[Check, ...]:
        """What holds."""
        return self._having("passed")

    @property
    def failed(self) -> tuple[Check, ...]:
        """What does not hold."""
        return self._having("failed")

    @property
    def declined(self) -> tuple[Check, ...]:
        """What the backend says that it cannot do."""
        return self._having("declined")

    @property
    def worst_ratio(self) -> float:
        """The largest error of all, as a share of what is allowed: 1 is the limit."""
        return max((check.ratio for check in self.checks if check.ratio is not None), default=0.0)

    @property
    def unexamined(self) -> tuple[str, ...]:
        """What was asked for and could not be examined at all, so that passing would mean nothing."""
        laws = ("values", "gradients") if self.gradients else ("values",)
        seen = {(check.law, check.dtype) for check in self.checks if check.ratio is not None}
        seen |= {(check.law, check.dtype) for check in self.failed}
        missing = [f"{law} in {dtype}" for dtype in self.dtypes for law in laws if (law, dtype) not in seen]
        return tuple(missing)

    def raise_for_failures(self) -> None:
        """Raise unless every law holds wherever it was not declined, and there was something to look at.

        Raises:
            ConformanceError: with every failed check, what was found and allowed, the problem, and the way out.
        """
        if self.failed or self.unexamined:
            raise ConformanceError("\n".join(self._objections()))

    def _objections(self) -> Iterator[str]:
        yield f"{self.subject} on {self.device} does not conform: {len(self.failed)} checks failed"
        yield from (f"- {check}: {check.detail}" for check in self.failed)
        reasons = "; ".join(dict.fromkeys(check.detail for check in self.declined))
        for what in self.unexamined:
            yield (
                f"- {what}: every call was declined ({reasons}), so nothing was shown; leave the dtype out of dtypes, "
                "or say gradients=False for a kernel without a backward pass"
            )

    def _having(self, status: Status) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == status)

    def __str__(self) -> str:
        """Tables of laws and problems, then what was declined and what failed."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.declined)} declined"
        yield f"{self.subject} on {self.device}: {counts}; largest error {self.worst_ratio:.2f} of what is allowed"
        if not self.gradients:
            yield "forward only: the backward pass was not asked for"
        for dtype in self.dtypes:
            yield ""
            yield from _table(dtype, [check for check in self.checks if check.dtype == dtype])
        for check in self.failed:
            yield f"\nFAILED {check}: {check.detail}"
        for reason in dict.fromkeys(check.detail for check in self.declined):
            cases = dict.fromkeys(check.case for check in self.declined if check.detail == reason)
            yield f"\ndeclined ({', '.join(cases)}): {reason}"


def _table(dtype: str, checks: list[Check]) -> Iterator[str]:
    """One line for each problem, one column for each law; the words of a law's name stand below each other."""
    laws = list(dict.fromkeys(check.law for check in checks))
    cases = list(dict.fromkeys(check.case for check in checks))
    cells = {(check.case, check.law): _cell(check) for check in checks}
    tops, names = zip(*(["", *law.split()][-2:] for law in laws), strict=True)
    yield from _aligned(
        [
            ["", *tops],
            [dtype, *names],
            *([case, *(cells[case, law] for law in laws)] for case in cases),
        ]
    )


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells)


def _cell(check: Check) -> str:
    return f"{check.ratio:.2f}" if check.status == "passed" and check.ratio is not None else _CELLS[check.status]

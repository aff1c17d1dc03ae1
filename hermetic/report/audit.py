"""An audit as one page: the verdict, every finding with its way out, and what was understood of what was read.

Algorithm: findings that say the same of many places are one entry with its places. Guarantee: every finding is counted,
and those that are not shown one by one are said to be so. Price: a few kilobytes; no torch, no matplotlib.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hermetic.audit import AuditFinding, AuditReport
from hermetic.audit.wording import CERTAINTIES, TO_THE_DOCTOR, UNJUDGED, alike, counts_in_words, judged
from hermetic.markup import Section, Verdict, capital, document, escaped, facts, finding, section, soft

MAX_ENTRIES: Final = 50
"""Entries that a page shows; a reader looks at no more, and JSON has them all."""

MAX_PLACES: Final = 100
"""Places that an entry names."""


def audit_page(report: AuditReport) -> str:
    """The report as the text of an HTML file.

    Example:
        >>> from hermetic.audit import AuditReport
        >>> page = audit_page(AuditReport(subject="train.yaml", kind="configuration", stack="axolotl", findings=()))
        >>> "Nothing: no rule found anything." in page
        True
    """
    return document(_verdict(report), [_to_do(report), _understood(report), _notes(report)])


def _verdict(report: AuditReport) -> Verdict:
    what = report.kind if report.stack is None else f"{report.kind} of {report.stack}"
    if not judged(report):
        return Verdict(
            kind="audit",
            subject=report.subject,
            look="unsure",
            word="nothing found",
            sentence=f"In this {what} {UNJUDGED}.",
        )
    if report.sound:
        return Verdict(
            kind="audit",
            subject=report.subject,
            look="good",
            word="nothing found",
            sentence=f"No rule objects to this {what}. Whether a model keeps documents apart is for the probe to say.",
        )
    first = _surest_first(report)[0]
    certain = first.certainty == "certain"
    found = f"{len(report.findings):,} finding{'s' * (len(report.findings) > 1)}"
    return Verdict(
        kind="audit",
        subject=report.subject,
        look="bad" if certain else "unsure",
        word="not sound" if certain else "to be checked",
        sentence=f"{found} in this {what}: {counts_in_words(report.findings)}. {capital(first.what)}.",
    )


def _surest_first(report: AuditReport) -> list[AuditFinding]:
    return sorted(report.findings, key=lambda one: CERTAINTIES.index(one.certainty))


def _to_do(report: AuditReport) -> Section:
    if not judged(report):
        return section("What to do", f"<p>{escaped(TO_THE_DOCTOR)}.</p>")
    if report.sound:
        return section("What to do", "<p>Nothing: no rule found anything.</p>")
    entries = alike(_surest_first(report))
    shown = "".join(_entry(entry) for entry in entries[:MAX_ENTRIES])
    return section("What to do", shown, _left_out(entries[MAX_ENTRIES:]))


def _entry(places: list[AuditFinding]) -> str:
    first, count = places[0], len(places)
    where = [f"{one.place} = {one.value}" if one.value else str(one.place) for one in places[:MAX_PLACES]]
    more = [] if first.versions is None else [f"of {first.versions}"]
    if count > 1:
        more.append(f"{count:,} places")
    if count > MAX_PLACES:
        more.append(f"{count - MAX_PLACES:,} of them are not listed here")
    more.append(f"hermetic explain {first.code} tells more")
    return finding(
        code=first.code,
        what=first.what,
        way_out=first.way_out,
        where=where,
        more=f"{'; '.join(more)}.",
        tag=first.certainty,
        look="bad" if first.certainty == "certain" else "unsure",
    )


def _left_out(entries: Sequence[list[AuditFinding]]) -> str:
    if not entries:
        return ""
    codes = Counter(one.code for places in entries for one in places)
    named = ", ".join(f"{code} ({count:,})" for code, count in sorted(codes.items())[:MAX_ENTRIES])
    return soft(f"{codes.total():,} more findings are not shown here: {named}. The audit as JSON has all of them.")


def _understood(report: AuditReport) -> Section | None:
    if not report.facts:
        return None
    return section("What was understood", facts(report.facts, name="What was understood"))


def _notes(report: AuditReport) -> Section | None:
    return section("Notes", *(f"<p>{escaped(note)}</p>" for note in report.notes)) if report.notes else None

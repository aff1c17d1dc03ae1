"""Audit a training script: read its text, and report what its calls and its own packing do wrong.

Guarantee: nothing of the script runs or is imported, and neither torch nor transformers is. A finding is reported only
on what the text shows; what it does not show is a note.
Price: a parse and some walks over the tree, well under 0.1 s for a script of a thousand lines.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hermetic.audit.finding import AuditFinding, AuditReport
from hermetic.audit.script.cuts import cuts
from hermetic.audit.script.packing import flattening, hermetic_rows, implementations, registered, restarts, rows
from hermetic.audit.script.script import BOUNDARIES, Script, script_of
from hermetic.audit.script.settings import drops_isolation, setups_of
from hermetic.audit.script.source import Source, read_source
from hermetic.audit.setup import Setup
from hermetic.audit.wording import NONE_SEEN

PACKED_ROWS: Final = "packed rows of hermetic"


def audit_script(path: str | Path, *, versions: Mapping[str, str] | None = None) -> AuditReport:
    """Read a Python training script, or the code of a notebook, and run nothing.

    Args:
        path: a ``.py`` or an ``.ipynb`` file.
        versions: packages and their versions, such as ``{"trl": "1.16.0"}``; without one, findings that depend on it
            name the versions they are true of.

    Returns:
        What was found, each at its line and column; notes tell what the text does not say.

    Raises:
        AuditError: the file cannot be read or decoded, is too large, or is not Python 3.

    Example:
        >>> audit_script("train.py").sound  # doctest: +SKIP
        True
    """
    return audit_source(read_source(path), versions=versions)


def audit_source(source: Source, *, versions: Mapping[str, str] | None = None) -> AuditReport:
    """The same of a source that has been read."""
    script = script_of(source)
    read = setups_of(script, dict(versions or {}))
    found = [*_of_setups(script, read.setups), *_of_script(script)]
    ordered = sorted(dict.fromkeys(found), key=lambda one: (one.place.line or 0, one.place.column or 0, one.code))
    return AuditReport(
        subject=source.file,
        kind="script",
        stack=_stack(script),
        findings=tuple(ordered),
        facts=tuple(_facts(script, read.setups)),
        notes=tuple(dict.fromkeys((*read.notes, *_notes(script), *(x for one in read.setups for x in one.notes)))),
    )


def _of_setups(script: Script, setups: tuple[Setup, ...]) -> Iterator[AuditFinding]:
    from hermetic.audit.rules import RULES

    for rule in RULES.values():
        if rule.check is None or not 20 <= int(rule.code[-2:]) < 40 or (script.sealed and drops_isolation(rule.code)):
            continue
        found = (finding for setup in setups for finding in rule.check(setup))
        yield from (one for one in found if not (one.code == "HM122" and one.value in registered(script)))


def _of_script(script: Script) -> Iterator[AuditFinding]:
    from hermetic.audit.rules import (
        script_boundaries,
        script_calls,
        script_isolation,
        script_lengths,
        script_targets,
        script_weights,
    )

    for module in (script_isolation, script_boundaries, script_lengths, script_weights):
        for rule in module.RULES:
            assert rule.check is not None  # noqa: S101 - rules are ours
            yield from rule.check(script)
    for with_checks in (script_calls, script_lengths, script_targets, script_weights):
        for check in with_checks.CHECKS:
            yield from check(script)


def _notes(script: Script) -> Iterator[str]:
    from hermetic.audit.rules import script_lengths

    yield from script_lengths.notes(script)


def _stack(script: Script) -> str | None:
    return next((name for name in ("trl", "transformers", "torch") if script.imports(name)), None)


def _facts(script: Script, setups: tuple[Setup, ...]) -> Iterator[tuple[str, str]]:
    of_setup = dict(setups[0].facts) if setups else {}
    seen = tuple(dict.fromkeys(_packing(script)))
    if setups and not (seen and not setups[0].joined):
        yield from of_setup.items()
    else:
        yield "packing", "; ".join(seen) or NONE_SEEN
        boundaries = _boundaries(script)
        if boundaries:
            yield "boundaries", boundaries
        used = sorted(str(one) for one in implementations(script))
        rest = {key: text for key, text in of_setup.items() if key != "packing"}
        yield from (rest | ({"attention": ", ".join(used)} if used else {})).items()
    if script.sealed:
        yield "sealed", "hermetic.seal"


def _packing(script: Script) -> Iterator[str]:
    """How rows come to hold several documents, as far as the text shows."""
    own = ", ".join(f"{name}, line {line}" for name, line in hermetic_rows(script))
    if own:
        yield f"{PACKED_ROWS}: {own}"
    for call in flattening(script):
        if not call.name.startswith("hermetic"):
            yield f"{call.short}, line {call.node.lineno}"
    cut = {node.lineno for node in cuts(script)}
    yield from (f"documents end to end, cut into rows, line {line}" for line in sorted(cut))
    lines = (row.join.node.lineno for row in rows(script))
    yield from (f"documents end to end, line {line}" for line in lines if line not in cut)


def _boundaries(script: Script) -> str:
    """Names of the boundaries that are given to something, or that an attention kernel is told."""
    told = {slot.key for slot in script.slot_values(*BOUNDARIES)}
    told |= {slot.key for slot in script.slot_values("position_ids") if restarts(slot.value, script.names)}
    return ", ".join(sorted(told))

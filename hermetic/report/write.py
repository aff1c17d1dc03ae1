"""Anything that can be reported, as a page in a file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermetic.audit import AuditReport
from hermetic.errors import ReportError
from hermetic.files import write_text
from hermetic.report.audit import audit_page


def write_report(subject: Any, path: str | os.PathLike[str]) -> None:
    """Write the page of what was packed, probed, diagnosed, audited or compared: whole or not at all.

    Args:
        subject: an ``AuditReport``, a ``LeakReport``, a ``Diagnosis``, a ``Comparison``, or a folder that
            ``hermetic pack`` made, opened or by its path.
        path: the file; one that is there is replaced.

    Raises:
        ReportError: ``subject`` is nothing of that kind, or nothing can be written to ``path``.
        PackedDataError: it is a folder that is damaged, or was not packed.
        MissingDependencyError: the page has plots, and matplotlib is not installed.
    """
    target = Path(path)
    require_place(target)
    write_page(page_of(subject), target)


def write_page(text: str, target: Path) -> None:
    """Write the text of a page: whole or not at all.

    Raises:
        ReportError: nothing can be written there.
    """
    try:
        write_text(target, text)
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {target} ({error.strerror}); expected the name of a file in a folder "
            "that can be written"
        ) from error


def require_place(path: Path) -> None:
    """Refuse, before minutes are spent, to write a page where none can be written.

    Raises:
        ReportError: there is no such folder, or ``path`` is one.
    """
    if os.path.isdir(path) or not os.path.isdir(path.parent):  # noqa: PTH112 - no error for a name that is too long
        raise ReportError(f"a report cannot be written to {path}; expected the name of a file in a folder that exists")


def page_of(subject: Any) -> str:
    """The page of a subject of :func:`write_report`, as text.

    Raises:
        ReportError: there is no page of such a thing.
    """
    if isinstance(subject, AuditReport):
        return audit_page(subject)
    for kind, page in _pages():
        if isinstance(subject, kind):
            return page(subject)
    raise ReportError(
        f"there is no report of a {type(subject).__name__}; expected an AuditReport, a LeakReport, a Diagnosis, a "
        "Comparison, or a folder that `hermetic pack` made"
    )


def _pages() -> list[tuple[Any, Callable[[Any], str]]]:
    """Kinds of subjects beside audits, each with its page; they bring torch along."""
    from hermetic.compare import Comparison
    from hermetic.compare.page import page as compare_page
    from hermetic.data import PackedData
    from hermetic.doctor import Diagnosis
    from hermetic.probe import LeakReport
    from hermetic.probe.page import page as probe_page
    from hermetic.report.doctor import doctor_page
    from hermetic.report.pack import pack_page

    return [
        ((str, os.PathLike, PackedData), pack_page),
        (LeakReport, probe_page),
        (Diagnosis, doctor_page),
        (Comparison, compare_page),
    ]

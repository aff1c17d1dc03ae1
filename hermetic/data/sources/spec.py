"""One source as its user names it: a place, and how often each of its documents is taken.

Guarantee: a number after the last ``@`` is a weight, unless a path of that whole name exists; whatever cannot be a
weight is an error and not a guess. Price: one look at the file system.
"""

import math
import os
from dataclasses import dataclass

from hermetic.errors import SourceError

__all__ = ["SourceSpec", "parse_source"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """One source and its weight."""

    location: str
    """A path, a glob, a folder that ``datasets`` saved, ``hub:org/name[:split]``, or ``-`` for standard input."""

    weight: float = 1.0
    """How often each document is taken: 1 once, 2 twice, 0.25 a seeded quarter, 2.5 twice and a seeded half."""


def parse_source(text: str) -> SourceSpec:
    """Read a source as it is written on a command line.

    Args:
        text: a location, with ``@`` and a number behind it for a weight other than 1.

    Returns:
        The location and its weight. A path that exists under the whole of ``text`` is taken literally.

    Raises:
        SourceError: If the location is empty, or the weight is not finite or not above 0.

    Example:
        ``parse_source("chats.jsonl@0.5")`` is ``SourceSpec(location="chats.jsonl", weight=0.5)``.
    """
    location, at, tail = text.rpartition("@")
    weight = _number(tail) if at and not os.path.lexists(text) else None
    if weight is None:
        location, weight = text, 1.0
    if not location:
        raise SourceError(f"the source {text!r} has no location, expected a path; name a file", reason="missing")
    if not math.isfinite(weight) or weight <= 0:
        raise SourceError(
            f"the source {text!r} has the weight {tail}, expected a finite number above 0; "
            "leave the source out to take none of its documents",
            reason="weight",
        )
    return SourceSpec(location=location, weight=weight)


def _number(text: str) -> float | None:
    """Return the number that is written plainly in ``text``; float() alone would also take 1_0 and other scripts."""
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None

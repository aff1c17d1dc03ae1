"""Floor 1: what pages are made of. Escaped text, verdicts, tables, heat maps, plots, one style in light and dark."""

from hermetic.markup.elements import (
    Look,
    Section,
    Verdict,
    cell,
    document,
    facts,
    finding,
    hidden,
    ornament,
    row,
    scrolling,
    section,
    soft,
    table,
)
from hermetic.markup.heatmap import PATTERNS, STEPS, HeatMap, Scale
from hermetic.markup.inline import require_plots
from hermetic.markup.plot import Histogram, Line, Lines, swatch
from hermetic.markup.text import capital, counted, escaped, number

__all__ = [
    "PATTERNS",
    "STEPS",
    "HeatMap",
    "Histogram",
    "Line",
    "Lines",
    "Look",
    "Scale",
    "Section",
    "Verdict",
    "capital",
    "cell",
    "counted",
    "document",
    "escaped",
    "facts",
    "finding",
    "hidden",
    "number",
    "ornament",
    "require_plots",
    "row",
    "scrolling",
    "section",
    "soft",
    "swatch",
    "table",
]

"""Floor 1: what every page is made of. Escaped text, headings and tables, heat maps, one style in light and dark."""

from hermetic.markup.elements import cell, document, section, soft, table
from hermetic.markup.heatmap import PATTERNS, STEPS, HeatMap, Scale
from hermetic.markup.text import escaped, number

__all__ = [
    "PATTERNS",
    "STEPS",
    "HeatMap",
    "Scale",
    "cell",
    "document",
    "escaped",
    "number",
    "section",
    "soft",
    "table",
]

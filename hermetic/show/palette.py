"""Colours of pictures: three for documents that take turns, one for each kind of mistake, in light and dark.

Guarantee: every fill stands out from its paper by at least 3 to 1 and text on a fill by at least 4.5 to 1, as WCAG 2.2
asks for graphics and text (a test computes it); a kind is told by its hatching, too, never by colour alone. The three
take turns, so that neighbours differ in lightness and hue, for eyes with any of the three colour deficiencies, too.
"""

from collections.abc import Mapping
from typing import Final

DOCUMENT_COLOURS: Final = 3

LIGHT: Final[Mapping[str, str]] = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#59636e",
    "empty": "#eceff2",
    "d0": "#0a4f96",
    "d1": "#1a9c86",
    "d2": "#c873b5",
    "many": "#5b6470",
    "pad": "#848d97",
    "on-d0": "#ffffff",
    "on-d1": "#10141a",
    "on-d2": "#10141a",
    "on-pad": "#10141a",
    "leak": "#d13c05",
    "on-leak": "#ffffff",
    "beyond": "#8a6500",
    "on-beyond": "#ffd981",
    "good": "#1a7f37",
}

DARK: Final[Mapping[str, str]] = {
    "paper": "#0f1319",
    "ink": "#e6eaf0",
    "soft": "#9aa5b1",
    "empty": "#1c222b",
    "d0": "#3f8fe0",
    "d1": "#5adfbd",
    "d2": "#e58fcb",
    "many": "#a7b1bd",
    "pad": "#7b8591",
    "on-d0": "#10141a",
    "on-d1": "#10141a",
    "on-d2": "#10141a",
    "on-pad": "#10141a",
    "leak": "#ff6a3c",
    "on-leak": "#10141a",
    "beyond": "#f5cf6a",
    "on-beyond": "#5c4300",
    "good": "#4cc274",
}

SANS: Final = 'system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif'
MONO: Final = 'ui-monospace,"DejaVu Sans Mono",monospace'


def colour_of(document: int) -> str:
    """The name of the colour of a document of a row, or of padding, which is -1."""
    return "pad" if document < 0 else f"d{document % DOCUMENT_COLOURS}"


def style() -> str:
    """The style of every picture, for a file of its own and inside of a page alike."""
    rules = [
        f".hermetic-row{{{_variables(LIGHT)}color:var(--ink)}}",
        f"@media screen and (prefers-color-scheme:dark){{.hermetic-row{{{_variables(DARK)}}}}}",
        *(f".hermetic-row .{name}{{fill:var(--{name})}}" for name in _FILLS),
        *(f".hermetic-row text.on-{name}{{fill:var(--on-{name})}}" for name in ("d0", "d1", "d2", "pad")),
        f".hermetic-row text{{font:13px {SANS};text-anchor:start;fill:var(--ink)}}",
        ".hermetic-row text.head{font-size:16px;font-weight:600}",
        ".hermetic-row text.soft{fill:var(--soft)}",
        f".hermetic-row text.mono{{font-family:{MONO};text-anchor:middle}}",
        ".hermetic-row text.small{font-size:12px}",
        ".hermetic-row text.end{text-anchor:end}",
        ".hermetic-row text.bad{fill:var(--leak);font-weight:700;text-decoration:underline}",
        ".hermetic-row .box,.hermetic-row .tile{fill:none;stroke:var(--ink);stroke-width:1.25}",
        ".hermetic-row .tile{stroke:var(--soft);stroke-dasharray:3 2}",
        ".hermetic-row .whole{stroke-width:2.5;stroke:var(--ink);stroke-dasharray:none}",
        ".hermetic-row .k-lost{fill:var(--paper);stroke:var(--leak);stroke-width:1.5}",
        ".hermetic-row text.bad-words{fill:var(--leak);font-weight:600}",
        ".hermetic-row .saw{fill:none;stroke:var(--ink);stroke-width:.75}",
        ".hermetic-row .stripe{stroke:var(--on-leak);stroke-width:1.4;opacity:.75}",
        ".hermetic-row .dash{stroke:var(--on-beyond);stroke-width:1.4}",
        ".hermetic-row .tick{fill:none;stroke:var(--good);stroke-width:2.5;stroke-linecap:round}",
        ".hermetic-row .cross{fill:none;stroke:var(--leak);stroke-width:2.5;stroke-linecap:round}",
    ]
    return "\n".join(rules)


_FILLS: Final = ("paper", "empty", "d0", "d1", "d2", "many", "pad", "leak", "beyond")


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())

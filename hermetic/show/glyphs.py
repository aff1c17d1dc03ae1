"""Which characters and colours stand for what in a terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hermetic.show.picture import Kind

DOCUMENT_STYLES: Final = ("bright_blue", "bright_cyan", "bright_magenta")
KIND_STYLES: Final[Mapping[Kind, str]] = {
    "own": DOCUMENT_STYLES[0],
    "leak": "bold bright_red",
    "lost": "bold red",
    "beyond": "bold yellow",
    "idle": "bright_black",
}

SHARES: Final[Mapping[Kind, Mapping[float, str]]] = {
    "own": {0.5: "half of it or more", 0.0: "less than half"},
    "leak": {0.5: "a part of it"},
}
"""Shares of a block, each with a character of its own, beside that of a whole block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """A character for each kind, so that a picture is read without colour."""

    own: tuple[str, str, str]
    """Less than half of a block, half or more, and all; a cell is all."""
    leak: tuple[str, str]
    """A part of a block, and all."""
    lost: str
    beyond: str
    idle: str
    empty: str
    edge: str

    def of(self, kind: Kind, share: float) -> str:
        """The character of a cell or block."""
        if kind == "own":
            return self.own[(share >= 0.5) + (share >= 1.0)]
        if kind == "leak":
            return self.leak[share >= 1.0]
        return {"lost": self.lost, "beyond": self.beyond, "idle": self.idle}[kind]


ASCII: Final = Glyphs(own=("-", "=", "#"), leak=("x", "X"), lost="o", beyond="+", idle=":", empty=".", edge="|")
UNICODE: Final = Glyphs(own=("░", "▒", "█"), leak=("x", "X"), lost="o", beyond="+", idle=":", empty="·", edge="│")


def style_of(document: int) -> str:
    """The colour of a document of a row, or of padding, which is -1."""
    return "bright_black" if document < 0 else DOCUMENT_STYLES[document % len(DOCUMENT_STYLES)]

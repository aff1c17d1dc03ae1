"""How the cells of a mask look, whoever draws them: kind, colour and strength, neighbours that look the same as one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from hermetic.show.palette import colour_of
from hermetic.show.picture import Kind, MaskPicture, RowPicture


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Of a cell or block that is not empty."""

    kind: Kind
    colour: str
    """Of the document that its cells belong to, ``many`` for several."""
    strength: float
    """From 0.4 for hardly any of the cells to 1.0 for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """Blocks of one line of queries that stand side by side and look the same; a cell stands alone."""

    query: int
    first: int
    last: int
    look: Look

    @property
    def keys(self) -> range:
        """Their blocks of keys."""
        return range(self.first, self.last + 1)


def strips(picture: RowPicture, mask: MaskPicture) -> Iterator[Strip]:
    """Everything that is drawn of a mask, line by line."""
    alone = mask.block == 1
    for query in range(mask.blocks):
        looks = [_look(picture, mask, query, key) for key in range(mask.blocks)]
        for (_, look), run in groupby(enumerate(looks), key=lambda entry: (entry[0] if alone else -1, entry[1])):
            keys = [key for key, _ in run]
            if look is not None:
                yield Strip(query=query, first=keys[0], last=keys[-1], look=look)


def _look(picture: RowPicture, mask: MaskPicture, query: int, key: int) -> Look | None:
    found = mask.kind_of(query, key)
    if found is None:
        return None
    kind, share = found
    if mask.tiles is not None and mask.block > 1 and kind == "own":
        share = 1.0 if mask.tiles.states[query, key] == 2 else 0.25
    document = picture.document_of(mask.block, query, key)
    return Look(
        kind=kind, colour="many" if document is None else colour_of(document), strength=round(0.4 + 0.6 * share, 2)
    )

"""A seeded generator of pairs of conversations that ask the same in other words and share their answer.

Algorithm: a pair draws its facts (who has what, of which colour, where, made and given by whom), then asks for them
twice; the two stand one after the other, as in a file that nobody shuffled. The question says only who, so whoever sees
one conversation alone can learn how an answer reads and not what it says. Whoever sees its twin in the same row can
copy it. That is what questions about one article, one product or one ticket are to each other.

Guarantee: the same ``count``, ``seed`` and ``split`` give the same conversations on every machine and Python version.
Facts of ``"train"`` and ``"heldout"`` differ, whatever the seeds: a checksum of the facts decides the side of a pair.

Price: about seven in eight draws are rejected for ``"heldout"`` and one in eight for ``"train"``.
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hermetic.demo.conversations import SYSTEM_PROMPT, Split
from hermetic.demo.dice import Dice
from hermetic.files import replacing

__all__ = ["near_duplicates", "write_near_duplicates"]

_HELDOUT_ONE_IN: Final = 8
_NAMES: Final = ("Arlo", "Bente", "Ciro", "Dunja", "Edda", "Falk", "Greta", "Hanno", "Ines", "Jorin", "Kaja", "Lio")
_THINGS: Final = ("kite", "lamp", "boat", "coat", "door", "cup", "wagon", "tent", "drum", "chair")
_PLACES: Final = ("harbour", "attic", "garden", "market", "tower", "cellar", "library", "mill")
_COLOURS: Final = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")


def near_duplicates(*, count: int, seed: int, split: Split = "train") -> Iterator[dict[str, Any]]:
    """Yield ``count`` conversations, each ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    Args:
        count: how many; an odd one leaves the last without its twin.
        seed: another seed gives other conversations of the same split.
        split: ``"train"`` or ``"heldout"``; the two never share the facts of a pair.

    Yields:
        One conversation with the shared system prompt first; the second of each pair has the answer of the first.

    Example:
        >>> first, second = near_duplicates(count=2, seed=0)
        >>> first["messages"][2] == second["messages"][2], first["messages"][1] == second["messages"][1]
        (True, False)
    """
    dice = Dice(f"near-duplicates {split} {seed}")
    made = 0
    while made < count:
        questions, answer = _pair(dice)
        if _split_of(answer) != split:
            continue
        for question in questions[: count - made]:
            yield {
                "messages": [
                    {"role": "system", "content": SYSTEM_PROMPT},
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            }
            made += 1


def write_near_duplicates(path: str | os.PathLike[str], *, count: int, seed: int, split: Split = "train") -> None:
    """Write :func:`near_duplicates` as JSONL, one conversation a line.

    The file appears complete or not at all. Same arguments, same bytes.

    Args:
        path: where to write; an existing file is replaced.
        count: how many conversations.
        seed: another seed gives other conversations of the same split.
        split: ``"train"`` or ``"heldout"``.
    """
    with replacing(Path(path)) as file:
        for one in near_duplicates(count=count, seed=seed, split=split):
            file.write(f"{json.dumps(one)}\n".encode())


def _pair(dice: Dice) -> tuple[list[str], str]:
    """Two questions about one fact, in random order, and their answer."""
    owner, maker, giver = dice.some(_NAMES, 3)
    colour, thing, place = dice.pick(_COLOURS), dice.pick(_THINGS), dice.pick(_PLACES)
    questions = (
        f"What does {owner} have?",
        f"What is it that {owner} has?",
        f"Tell me what {owner} has.",
        f"What do you know of {owner}?",
    )
    answer = f"{owner} has a {colour} {thing} in the {place}, made by {maker}, given by {giver}."
    return dice.some(questions, 2), answer


def _split_of(answer: str) -> Split:
    return "heldout" if zlib.crc32(answer.encode()) % _HELDOUT_ONE_IN == 0 else "train"

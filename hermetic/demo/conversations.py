"""A seeded generator of short chat conversations, for the demo, its tokenizer and the tests.

Algorithm: each conversation draws a topic, then the topic's *facts* (who owns what, what costs how much),
then a *phrasing* of these facts. Every answer can be worked out from the conversation itself, so a tiny model
has something to learn, and the same few made-up names carry other facts in other conversations, so a model
that looks into a neighbouring document of its row reads contradictions. One conversation in eight is a
near-duplicate: the facts of an earlier one, phrased anew. Lengths have a long tail, because lists of facts
have one.

Guarantee: the same ``count``, ``seed`` and ``split`` give the same conversations on every machine and Python
version, for only ``Random.random``, whose stream Python promises to keep, and correctly rounded arithmetic
are used. Conversations of ``"train"`` and ``"heldout"`` never share their facts, whatever the seeds: the
split is decided by a checksum of the facts, so a near-duplicate is always on its original's side.

Price: about seven in eight draws are rejected for ``"heldout"`` and one in eight for ``"train"``.
"""

import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from hermetic.demo.dice import Dice
from hermetic.files import replacing

__all__ = ["SYSTEM_PROMPT", "Split", "conversations", "write_conversations"]

Split = Literal["train", "heldout"]
Conversation = dict[str, Any]
Turns = list[str]
"""User and assistant texts in alternation, the user first."""

SYSTEM_PROMPT: Final = "You are a careful assistant. Answer only from what you were told."

_NEAR_DUPLICATE_SHARE: Final = 1 / 8
_HELDOUT_ONE_IN: Final = 8
_RECENT: Final = 64
"""Near-duplicates repeat the facts of one of this many latest conversations."""

_NAMES: Final = (
    "Arlo",
    "Bente",
    "Ciro",
    "Dunja",
    "Edda",
    "Falk",
    "Greta",
    "Hanno",
    "Ines",
    "Jorin",
    "Kaja",
    "Lio",
)
_COLOURS: Final = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")
_THINGS: Final = ("kite", "lamp", "boat", "coat", "door", "cup", "wagon", "tent", "drum", "chair")
_PLACES: Final = ("harbour", "attic", "garden", "market", "tower", "cellar", "library", "mill")
_GOODS: Final = (
    *("brin", "tolu", "wexa", "mardo", "quill", "sapto", "nerv", "golim", "parza", "dibe", "fenko", "gusta"),
    *(
        "hyle",
        "jambo",
        "korv",
        "lunto",
        "mipra",
        "nolde",
        "vostra",
        "pinnu",
        "rasko",
        "sylva",
        "tandu",
        "zulmi",
    ),
)
_SYLLABLES: Final = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve", "wo", "za")
_GREETINGS: Final = (
    "",
    "",
    "",
    "Hello. ",
    "Hi there. ",
    "Good morning. ",
    "A quick question. ",
    "Please help me. ",
)
_THANKS: Final = ("Thank you.", "Thanks.", "Good, thank you.")


def _recall(facts: Dice, words: Dice) -> Turns:
    name, (thing, other) = facts.pick(_NAMES), facts.some(_THINGS, 2)
    colour, second = facts.some(_COLOURS, 2)
    told = words.pick(
        (
            f"{name} has a {colour} {thing} and a {second} {other}.",
            f"The {thing} of {name} is {colour}, the {other} is {second}.",
        )
    )
    asked = words.pick((f"What colour is the {thing}?", f"Of which colour is the {thing} of {name}?"))
    return [f"{told} {asked}", f"The {thing} is {colour}."]


def _price_list(facts: Dice, words: Dice) -> Turns:
    goods = facts.some(_GOODS, facts.long_tail(3, len(_GOODS)))
    prices = [2 + facts.below(90) for _ in goods]
    wanted = facts.below(len(goods))
    listed = ", ".join(f"{good} {price}" for good, price in zip(goods, prices, strict=True))
    opened = words.pick(("The prices today:", "Here is the price list:", "In the shop:"))
    asked = words.pick((f"What does a {goods[wanted]} cost?", f"How much is one {goods[wanted]}?"))
    return [f"{opened} {listed}. {asked}", f"A {goods[wanted]} costs {prices[wanted]}."]


def _dearest(facts: Dice, words: Dice) -> Turns:
    first, second = facts.some(_GOODS, 2)
    low = 2 + facts.below(40)
    high = low + 1 + facts.below(40)
    dear, cheap = (first, second) if facts.chance(0.5) else (second, first)
    told = f"A {dear} costs {high} and a {cheap} costs {low}."
    asked = words.pick(("Which one costs more?", "Which of the two is dearer?"))
    return [f"{told} {asked}", f"The {dear} costs more."]


def _sum(facts: Dice, words: Dice) -> Turns:
    first, second = facts.below(30), facts.below(30)
    asked = words.pick((f"What is {first} plus {second}?", f"Add {first} and {second}.", f"{first} + {second}?"))
    return [asked, f"{first} plus {second} is {first + second}."]


def _difference(facts: Dice, words: Dice) -> Turns:
    small = facts.below(30)
    large = small + facts.below(30)
    asked = words.pick((f"What is {large} minus {small}?", f"Take {small} from {large}."))
    return [asked, f"{large} minus {small} is {large - small}."]


def _made_up_word(facts: Dice) -> str:
    return "".join(facts.pick(_SYLLABLES) for _ in range(2 + facts.below(2)))


def _spell(facts: Dice, words: Dice) -> Turns:
    word = _made_up_word(facts)
    asked = words.pick((f"Spell {word} with dashes.", f"Write the letters of {word} with dashes between them."))
    return [asked, "-".join(word)]


def _backwards(facts: Dice, words: Dice) -> Turns:
    listed = [_made_up_word(facts) for _ in range(facts.long_tail(2, 12))]
    asked = words.pick(("Give these words in reverse order:", "Turn this list around:"))
    return [f"{asked} {' '.join(listed)}", " ".join(reversed(listed))]


def _last_word(facts: Dice, words: Dice) -> Turns:
    listed = [_made_up_word(facts) for _ in range(3 + facts.below(6))]
    asked = words.pick(("What is the last word of this line?", "Which word ends this line?"))
    return [f"{asked} {' '.join(listed)}", f"The last word is {listed[-1]}."]


def _whereabouts(facts: Dice, words: Dice) -> Turns:
    """A few turns: places are told one by one, then asked for."""
    names = facts.some(_NAMES, facts.long_tail(1, 9))
    places = [facts.pick(_PLACES) for _ in names]
    turns: Turns = []
    for name, place in zip(names, places, strict=True):
        verb = words.pick(("is in", "waits in", "works in"))
        turns += [f"{name} {verb} the {place}.", f"Noted: {name}, {place}."]
    wanted = facts.below(len(names))
    turns += [f"Where is {names[wanted]}?", f"{names[wanted]} is in the {places[wanted]}."]
    if words.chance(0.3):
        turns += [words.pick(_THANKS), "You are welcome."]
    return turns


def _diary(facts: Dice, words: Dice) -> Turns:
    """A long story with one question at its end: the tail of the lengths."""
    length = facts.long_tail(3, 26)
    lines = [tuple(map(facts.pick, (_NAMES, _COLOURS, _THINGS, _PLACES))) for _ in range(length)]
    verb = words.pick(("left", "put", "hid"))
    told = " ".join(
        f"Day {day}: {name} {verb} a {colour} {thing} in the {place}."
        for day, (name, colour, thing, place) in enumerate(lines, start=1)
    )
    day = facts.below(length)
    name, colour, thing, place = lines[day]
    return [f"{told} What happened on day {day + 1}?", f"{name} {verb} a {colour} {thing} in the {place}."]


_TOPICS: Final[tuple[Callable[[Dice, Dice], Turns], ...]] = (
    *(_recall, _recall, _recall, _price_list, _price_list, _dearest, _sum, _difference),
    *(_spell, _backwards, _last_word, _whereabouts, _whereabouts, _diary),
)
"""A topic that stands here twice is drawn twice as often."""


def _messages(topic: int, facts: str, phrasing: str) -> list[dict[str, str]]:
    """The messages of one conversation: a topic, the seed of its facts and the seed of its phrasing."""
    words = Dice(phrasing)
    greeting = words.pick(_GREETINGS)
    turns = _TOPICS[topic](Dice(facts), words)
    turns[0] = greeting + turns[0]
    messages = [{"role": "system", "content": SYSTEM_PROMPT}]
    messages += [{"role": ("user", "assistant")[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return messages


def _split_of(topic: int, facts: str) -> Split:
    """The side that these facts belong to, decided by one fixed phrasing of them and by nothing else."""
    fixed = json.dumps(_messages(topic, facts, "split"))
    return "heldout" if zlib.crc32(fixed.encode()) % _HELDOUT_ONE_IN == 0 else "train"


def conversations(*, count: int, seed: int, split: Split = "train") -> Iterator[Conversation]:
    """Yield ``count`` conversations, each ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    Args:
        count: how many.
        seed: another seed gives other conversations of the same split.
        split: ``"train"`` or ``"heldout"``; the two never share the facts of a conversation.

    Yields:
        One conversation with the shared system prompt first and the assistant's answer last.
    """
    dice = Dice(f"{split} {seed}")
    recent: deque[tuple[int, str]] = deque(maxlen=_RECENT)
    made = drawn = 0
    while made < count:
        drawn += 1
        if recent and dice.chance(_NEAR_DUPLICATE_SHARE):
            topic, facts = dice.pick(recent)
        else:
            topic, facts = dice.below(len(_TOPICS)), f"{seed} {drawn}"
            if _split_of(topic, facts) != split:
                continue
            recent.append((topic, facts))
        yield {"messages": _messages(topic, facts, f"{seed} {drawn} words")}
        made += 1


def write_conversations(path: str | os.PathLike[str], *, count: int, seed: int, split: Split = "train") -> None:
    """Write :func:`conversations` as JSONL, one conversation a line.

    The file appears complete or not at all. Same arguments, same bytes.

    Args:
        path: where to write; an existing file is replaced.
        count: how many conversations.
        seed: another seed gives other conversations of the same split.
        split: ``"train"`` or ``"heldout"``.
    """
    with replacing(Path(path)) as file:
        for one in conversations(count=count, seed=seed, split=split):
            file.write(f"{json.dumps(one)}\n".encode())

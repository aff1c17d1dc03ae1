"""A rule with its own documentation: what, why it is bad, a failing and a passing example, the fix, where it is from.

Guarantee: no rule without a source, and none without two examples; the tests run both, through the same door as a
user's file, so that the documentation cannot say what the code does not do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Door = Literal[
    "trl", "axolotl", "llamafactory", "swift", "torchtune", "megatron", "deepspeed", "script", "batch", "run"
]  # fmt: skip
"""How an example is read: a configuration of a stack; ``script``: the text of a Python file, which is not run;
``batch``: Python that ends with a mapping named ``batch``, to be audited; ``run``: Python that ends with a report of
the probe, the doctor or the audit of a folder named ``report``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Something to look at, and how it is read."""

    door: Door
    text: str
    file: str | None = None
    """Name that the file would have, where the reader goes by it: ``train.yaml``, ``command.sh``."""
    versions: tuple[str, ...] = ()
    """Versions that it is read with, where only old ones have the mistake: ``trl==0.19.1``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule; the check is a small pure function over what a reader made of a file, or the probe's."""

    code: str
    name: str
    """A few words in kebab-case: ``packing-without-boundaries``."""
    what: str
    """What is found, in a sentence."""
    why: str
    """What it does to the trained model, with a number where one was measured."""
    bad: Example
    good: Example
    fix: str
    sources: tuple[str, ...]
    """Public reports, documentation or a measurement of this repository: ``huggingface/transformers#46634``."""
    check: Callable[[Any], Iterator[Any]] | None = None
    """``None``: found by running, see :mod:`hermetic.probe` and :mod:`hermetic.doctor`."""

    def __post_init__(self) -> None:
        for part in ("code", "name", "what", "why", "fix", "sources"):
            assert getattr(self, part), f"{self.code} has no {part}"  # noqa: S101 - rules are ours

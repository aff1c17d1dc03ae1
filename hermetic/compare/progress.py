"""How far a comparison is, in optimizer steps over all arms and seeds, and what time is left."""

import time
from collections.abc import Callable
from datetime import timedelta

OnStep = Callable[[str, int, int], None]
"""Told what is being done, how many optimizer steps are done, and of how many."""


class Progress:
    """Counts optimizer steps; the time left is that of the steps so far, measuring included."""

    def __init__(self, on_step: OnStep, *, runs: int, steps: int) -> None:
        self._on_step = on_step
        self._steps = steps
        self._total = runs * steps
        self._done = self._finished = 0
        self._start = time.perf_counter()

    def say(self, what: str) -> None:
        """What is being done now."""
        self._on_step(f"{what}{self._left()}", self._done, self._total)

    def run(self, what: str) -> Callable[[str], None]:
        """For ``fit``, which speaks once before the first step and once after each step."""
        before, step = self._finished, -1

        def stepped(_stage: str) -> None:
            nonlocal step
            step += 1
            self._done = before + step
            self.say(f"{what}, step {step:,} of {self._steps:,}")

        return stepped

    def finish(self, *, skipped: int = 0) -> None:
        """A run is over, perhaps before its last step, and so many later ones will not be."""
        missing = self._finished + self._steps - self._done
        self._total -= missing + skipped * self._steps
        self._finished = self._done

    def _left(self) -> str:
        if not self._done:
            return ""
        seconds = (time.perf_counter() - self._start) / self._done * (self._total - self._done)
        return f", about {timedelta(seconds=round(seconds))} left"

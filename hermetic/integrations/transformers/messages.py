"""What is said while a Trainer runs, and what is not. Price: none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from transformers import TrainerCallback
from transformers.utils import logging


class StepMessages(TrainerCallback):
    """Says of each optimizer step its number, its loss and the time that is left."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.on_stage = on_stage
        self.start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Start the clock."""
        self.start = time.perf_counter()
        self.on_stage(f"step 1 of {state.max_steps:,}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Speak of a step; the log of the whole run, at the end, has no loss of a step."""
        if "loss" in logs:
            per_step = (time.perf_counter() - self.start) / state.global_step
            left = timedelta(seconds=round(per_step * (state.max_steps - state.global_step)))
            self.on_stage(
                f"step {state.global_step:,} of {state.max_steps:,}, loss {logs['loss']:.4f}, about {left} left"
            )


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No bars of transformers, which has one for each model that is loaded or saved."""
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here
    try:
        yield
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here

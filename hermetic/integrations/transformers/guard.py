"""Callbacks that seal and probe before the first step, for any Trainer made of transformers'.

Guarantee: no step is taken on a model whose packed documents reach each other, as measured on the first packed batch
that the Trainer itself collated. Price: that of ``hermetic.seal`` and of ``hermetic.guard``.
"""

from typing import Any

from transformers import TrainerCallback

from hermetic.errors import HermeticError
from hermetic.probe import Guard, LeakReport, guard
from hermetic.probe.guard import OnLeak, check_options
from hermetic.seal import is_sealed, seal


class SealModel(TrainerCallback):
    """Seals the model when training starts, for programs that make it themselves and take callbacks.

    ``llamafactory.train.tuner.run_exp(callbacks=[SealModel(), LeakGuard()])``. A model that is sealed is left alone.
    """

    def __init__(self, *, backend: str = "sdpa") -> None:
        """Make a callback.

        Args:
            backend: as in ``hermetic.seal``.
        """
        self.backend = backend

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Seal the model.

        Raises:
            SealError: it cannot be sealed.
        """
        if not is_sealed(model):
            seal(model, backend=self.backend)


class LeakGuard(TrainerCallback):
    """Probes the first packed batch of any Trainer, as the Trainer calls its model, before the first step.

    For ``transformers.Trainer`` and those made of it, such as TRL's ``SFTTrainer``, as they are:
    ``Trainer(..., callbacks=[LeakGuard()])``. A run that is resumed is probed again.
    """

    def __init__(self, *, every: int | None = None, on_leak: OnLeak = "raise") -> None:
        """Make a callback.

        Args:
            every: probe again every so many optimizer steps; by default only the first packed batch.
            on_leak: ``"raise"`` stops training before it learns from documents that reach each other, as
                ``LeakReport.raise_for_leaks`` does; ``"report"`` only keeps the reports.

        Raises:
            ProbeError: ``every`` or ``on_leak`` is none of these. While training: ``LeakError`` for a leak,
                ``NoBoundariesError`` when nothing in a batch says where documents start, ``ProbeError`` for arguments
                that cannot be made for a few of its documents.
        """
        check_options(every=every, on_leak=on_leak)
        self.every = every
        self.on_leak = on_leak
        self.reports: list[LeakReport] = []
        """What was found, one report for each probed batch."""
        self._guard: Guard | None = None

    @property
    def unprobed(self) -> HermeticError | None:
        """Why the latest batch that was due was not probed: it was not packed, say. ``None`` once one was."""
        return None if self._guard is None else self._guard.unprobed

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Guard the model; a guard that an earlier, failed run has left is taken out."""
        self.on_train_end(args, state, control)
        self._guard = guard(model, on_leak=self.on_leak)
        self._guard.reports = self.reports

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Probe again when it is time."""
        if self._guard is not None and self.every is not None and state.global_step % self.every == 0:
            self._guard.arm()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' names
        """Leave the model as it was."""
        if self._guard is not None:
            self._guard.remove()

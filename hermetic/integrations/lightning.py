"""Lightning over packed rows: a callback that probes before the first step.

Guarantee: that of ``hermetic.guard``. Price: importing this module imports Lightning.
"""

import importlib
import importlib.util
from typing import Any

from hermetic.errors import HermeticError, MissingDependencyError, ProbeError
from hermetic.probe import Guard, LeakReport, guard
from hermetic.probe.guard import OnLeak, check_options


def _callback_class() -> Any:
    """``Callback`` of whichever of Lightning's two packages is installed."""
    for package, home in (("lightning", "lightning.pytorch"), ("pytorch_lightning", "pytorch_lightning")):
        if importlib.util.find_spec(package) is not None:
            return importlib.import_module(home).Callback
    raise MissingDependencyError(
        "hermetic.integrations.lightning needs the package 'lightning', which is not installed; expected the extra "
        "that brings it: pip install 'hermetic[lightning]'"
    )


class LeakGuard(_callback_class()):  # type: ignore[misc]  # Lightning is not installed where this is checked
    """Probes the first packed batch as the LightningModule calls its model, before the first step.

    ``Trainer(callbacks=[LeakGuard(model="model")])``. A run that is resumed is probed again.
    """

    def __init__(self, *, model: str = "model", every: int | None = None, on_leak: OnLeak = "raise") -> None:
        """Make a callback.

        Args:
            model: name of the language model inside the LightningModule, as ``get_submodule`` takes it.
            every: probe again every so many optimizer steps; by default only the first packed batch.
            on_leak: ``"raise"`` stops training before it learns from documents that reach each other, as
                ``LeakReport.raise_for_leaks`` does; ``"report"`` only keeps the reports.

        Raises:
            ProbeError: ``every`` or ``on_leak`` is none of these. While training, as ``hermetic.guard``.
        """
        super().__init__()
        check_options(every=every, on_leak=on_leak)
        self.model = model
        self.every = every
        self.on_leak = on_leak
        self.reports: list[LeakReport] = []
        """What was found, one report for each probed batch."""
        self._guard: Guard | None = None
        self._steps_seen = 0

    @property
    def unprobed(self) -> HermeticError | None:
        """Why the latest batch that was due was not probed: it was not packed, say. ``None`` once one was."""
        return None if self._guard is None else self._guard.unprobed

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Guard the language model."""
        self.remove()
        try:
            model = pl_module.get_submodule(self.model)
        except AttributeError as error:
            children = [name for name, _ in pl_module.named_children()]
            raise ProbeError(
                f"{type(pl_module).__name__} has no module {self.model!r}; expected the name of the language model "
                f"that its training_step calls, such as one of {children}: LeakGuard(model=...)"
            ) from error
        self._steps_seen = trainer.global_step
        self._guard = guard(model, on_leak=self.on_leak)
        self._guard.reports = self.reports

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002 - Lightning's names
        """Probe again when it is time; several batches may make one step."""
        step = trainer.global_step
        if self._guard is not None and self.every is not None and step - self._steps_seen >= self.every:
            self._steps_seen = step
            self._guard.arm()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """Leave the model as it was."""
        self.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002 - Lightning's names
        """Leave the model as it was."""
        self.remove()

    def remove(self) -> None:
        """Take the guard out of the model; the reports stay."""
        if self._guard is not None:
            self._guard.remove()

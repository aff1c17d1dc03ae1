"""Guard a training loop: probe the model with the arguments of its own calls, before anything is learned from them.

Algorithm: a forward pre-hook on the model waits for a call in training mode with gradients, probes the model
with the arguments of that very call (``probe_call``), and then lets the call go on or refuses it.
Guarantee: the first packed call is probed before it is run, so no step is taken on an unprobed kind of call, and
a refused call is refused again until the guard is removed. Calls of one document per row are let through, for they
cannot leak, and the guard waits for the first packed one.
Price: one probe, of at most six documents of the batch, each time; nothing between. Other hooks on the model see the
probe's calls too.
"""

from types import TracebackType
from typing import Any, Literal, final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hermetic.errors import BoundariesError, HermeticError, NotPackedError, ProbeError
from hermetic.probe.calls import probe_call
from hermetic.probe.report import LeakReport
from hermetic.seal.channel import outside_graphs

OnLeak = Literal["raise", "report"]


@final
class Guard:
    """What ``guard`` returns: a handle, and a context manager that removes it."""

    def __init__(self, model: nn.Module, *, every: int | None, on_leak: OnLeak) -> None:
        check_options(every=every, on_leak=on_leak)
        self.model = model
        self.every = every
        self.on_leak = on_leak
        self.reports: list[LeakReport] = []
        """What was found, one report for each probed call."""
        self.unprobed: HermeticError | None = None
        """Why the latest call that was due was not probed: it was not packed, say. ``None`` once one was."""
        self._handle: RemovableHandle | None = None
        self._calls_to_wait = 0

    def arm(self) -> None:
        """Probe the next packed training call."""
        self._calls_to_wait = 0
        if self._handle is None:
            # first of all hooks, so that it sees the arguments of the caller and not what a seal makes of them
            self._handle = self.model.register_forward_pre_hook(self._before_call, prepend=True, with_kwargs=True)

    def remove(self) -> None:
        """Take the hook out of the model; the reports stay."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    @outside_graphs
    def _before_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is None:  # another guard of the model probed this call, and this one has seen that and gone
            return
        if not (model.training and torch.is_grad_enabled()):
            return
        self._calls_to_wait -= 1
        if self._calls_to_wait > 0:
            return
        self.remove()  # the probe calls the model too
        done = False
        try:
            done = self._probed(model, args, kwargs)
        finally:
            if not done or self.every is not None:
                self.arm()
        if done and self.every is not None:
            self._calls_to_wait = self.every

    def _probed(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Probe a call; ``False`` when it was none that could be.

        Raises:
            LeakError: documents of the call reach each other.
            ProbeError: nobody can tell whether the call is packed, or it cannot be probed.
        """
        try:
            report = probe_call(model, args, kwargs)
        except NotPackedError as error:
            self.unprobed = error
            return False
        except (ProbeError, BoundariesError) as error:
            self.unprobed = error
            if self.on_leak == "raise":
                raise
            return False
        self.unprobed = None
        self.reports.append(report)
        if self.on_leak == "raise":
            report.raise_for_leaks()
        return True


def guard(model: nn.Module, *, every: int | None = None, on_leak: OnLeak = "raise") -> Guard:
    """Probe a model's first packed training call, with its own arguments, before it is run.

    Args:
        model: what the loop calls, possibly wrapped (DistributedDataParallel, torch.compile, PEFT). A call of its
            ``forward`` runs no hooks and is not seen.
        every: probe again every so many training calls; by default the first packed one only.
        on_leak: ``"raise"`` refuses a call as ``LeakReport.raise_for_leaks`` does; ``"report"`` only keeps the
            reports. Distortions are in the reports either way.

    Returns:
        A handle: ``reports``, and ``remove()``, which leaving a ``with`` block calls.

    Raises:
        ProbeError: ``every`` or ``on_leak`` is none of these, or ``model`` is no module. By the guarded call:
            ``LeakError`` for a leak, ``NoBoundariesError`` when nothing in the call says where documents start,
            ``ProbeError`` for arguments that cannot be made for a few of its documents.

    Example:
        >>> import torch
        >>> from hermetic.probe import guard
        >>> class Tokenwise(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding, self.head = torch.nn.Embedding(16, 4), torch.nn.Linear(4, 16)
        ...     def forward(self, input_ids, document_ids):
        ...         return self.head(self.embedding(input_ids))
        >>> model = Tokenwise()
        >>> with guard(model) as guarded:
        ...     logits = model(torch.tensor([[5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1]]))
        >>> [report.verdict for report in guarded.reports]
        ['sealed']
    """
    if not isinstance(model, nn.Module):
        raise ProbeError(
            f"cannot guard a {type(model).__name__}; expected the torch module that the loop calls, such as the model "
            "inside of a function"
        )
    armed = Guard(model, every=every, on_leak=on_leak)
    armed.arm()
    return armed


def check_options(*, every: int | None, on_leak: str) -> None:
    """Refuse what a guard cannot do.

    Raises:
        ProbeError: ``every`` is no positive number, or ``on_leak`` is unknown.
    """
    if every is not None and (type(every) is not int or every < 1):
        raise ProbeError(f"every is {every!r}; expected a positive number, or None for the first packed call only")
    if on_leak not in {"raise", "report"}:
        raise ProbeError(f"on_leak is {on_leak!r}; expected 'raise' or 'report'")

"""In the command's own process: stop at the first training batch, and have it examined there.

Algorithm: every call of a torch module passes ``torch.nn.Module.__call__``. The first one that has token ids, while
gradients are on, of a module in training mode that holds an embedding and parameters to train, is the first training
batch; calls are seen from the outside in, so it is the outermost module's. The watch takes itself off, the batch is
examined, the record is written, and the process waits for the parent to end it. In a distributed run the first
process examines, the others wait. A model that trains in evaluation mode is told by its first optimizer step.
Guarantee: no optimizer of torch takes a step with gradients that are not zero, and nothing of the command runs on.
Price: one more Python call per module call until then.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hermetic.errors import HermeticError
from hermetic.files import write_text

FOLDER = "HERMETIC_DOCTOR"
"""Environment variable: the folder in which the parent waits for the record."""

PARENT = "HERMETIC_DOCTOR_PARENT"
"""Environment variable: the process that waits; when it is gone, so are those that it started."""

RECORD = "record.json"

_NOT_TOKENS = {"attention_mask", "position_ids", "labels", "token_type_ids", "cache_position"}

_INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCall:
    """One call of a model with token ids."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def arm() -> None:
    """Watch this process from now on."""
    folder = Path(os.environ[FOLDER])
    folder.joinpath(f"armed-{os.getpid()}").touch()
    Watch(folder).put_on()


class Watch:
    """Sees every module call until the first training batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._original: Callable[..., Any] = nn.Module.__call__
        self._on_step: Any = None
        self._last: TrainingCall | None = None
        """The last call with gradients of a model in evaluation mode."""
        self._thread = threading.local()

    def put_on(self) -> None:
        """Stand between torch and its modules."""
        original, see = self._original, self._see

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and _is_training_call(module, args, kwargs):
                return see(module, args, kwargs)
            return original(module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]  # the one place that every call passes
        self._on_step = register_optimizer_step_pre_hook(self._see_step)

    def _take_off(self) -> None:
        nn.Module.__call__ = self._original  # type: ignore[method-assign]  # as above
        self._on_step.remove()

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = TrainingCall(module=module, args=args, kwargs=kwargs)
        if _trains(module):
            self._stop(found)
        if getattr(self._thread, "inside", False):
            return self._original(module, *args, **kwargs)
        self._last, self._thread.inside = found, True
        try:
            return self._original(module, *args, **kwargs)
        finally:
            self._thread.inside = False

    def _see_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """The step that must not be taken; one without gradients only makes the optimizer's state."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(p.grad is not None and bool(p.grad.any()) for p in parameters):
            return
        self._stop(self._last)

    def _stop(self, found: TrainingCall | None) -> NoReturn:
        """Examine in one process, and wait in all."""
        self._take_off()
        if _is_first_process() and _claims(self._folder):
            write_text(self._folder / RECORD, json.dumps(_record(found), allow_nan=False))
        wait_for_the_end(self._folder)


def _record(found: TrainingCall | None) -> dict[str, Any]:
    if found is None:
        return {
            "error": "the command was about to take an optimizer step, and no torch module that holds an embedding had "
            "been called with token ids; expected a model that takes input_ids. Probe it in Python: hermetic.probe"
        }
    try:
        from hermetic.doctor.examine import examine

        return examine(found.module, found.args, found.kwargs).to_dict()
    except HermeticError as error:
        return {"error": f"{type(found.module).__name__}: {error.code}: {error}"}
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told and nothing is trained
        return {
            "error": f"examining {type(found.module).__name__} failed with {type(error).__name__}: {error} "
            f"(torch {torch.__version__}, {sys.executable})"
        }


def token_ids(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The token ids of a call: ``input_ids``, or else the first tensor of integers that is no mask, position or label.

    Args:
        args: positional arguments of a module's call.
        kwargs: its named arguments.

    Returns:
        Integers, ``[B, S]`` or ``[S]``; ``None`` where there are none, or where embeddings were given in their place.
    """
    if kwargs.get("inputs_embeds") is not None:
        return None
    named = (value for name, value in kwargs.items() if name not in _NOT_TOKENS)
    return next((x for x in (kwargs.get("input_ids"), *args[:1], *named) if _is_ids(x)), None)


def _is_ids(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS and value.ndim in {1, 2} and value.numel() > 1


def _is_training_call(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if token_ids(args, kwargs) is None or isinstance(module, nn.Embedding):
        return False
    embeds = any(isinstance(inner, nn.Embedding) for inner in module.modules())
    return embeds and any(parameter.requires_grad for parameter in module.parameters())


_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "DeepSpeedEngine": "module"}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside wrappers that only distribute it over devices."""
    while (name := _WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, name)
    return module


def _trains(module: nn.Module) -> bool:
    inner = unwrapped(module)
    inner = getattr(inner, "_orig_mod", inner)  # torch.compile keeps the mode of the day it wrapped the module
    return inner.training


def _is_first_process() -> bool:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_rank() if distributed else os.environ.get("RANK", "0")) == 0


def _claims(folder: Path) -> bool:
    """Whether this process is the first to come here."""
    try:
        folder.joinpath("claimed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for_the_end(folder: Path) -> NoReturn:
    """Run nothing more until the parent ends this process; end by itself when the parent or its folder is gone.

    Exiting at once would let a launcher or a shell script go on to what comes next.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)  # the command's own handlers may write checkpoints
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    while folder.exists() and _is_alive(int(os.environ[PARENT])):
        time.sleep(0.05)
    os._exit(1)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

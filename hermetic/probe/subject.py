"""What is probed: a model or any callable, seen as a function from a packed batch to logits.

Every run starts from the same random state, so that dropout in training mode does not look like a leak, and
leaves the caller's random state as it was.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import ProbeError, UnsupportedError
from hermetic.seal import is_sealed
from hermetic.seal.measure import evaluation

Forward = Callable[[PackedBatch], Any]

_FAILURES = (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError)
"""What models raise when they cannot run an input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A function from packed batches to logits, and the modules behind it."""

    name: str
    forward: Forward
    modules: tuple[nn.Module, ...]
    """Outermost modules that took part; for a callable they are found by watching one run."""
    device: torch.device
    vocabulary: int
    """Token ids below this number can be embedded."""
    seed: int

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """``[T, V]`` logits of the real tokens of ``batch``.

        Raises:
            ProbeError: the output has no logits per token, or they are not finite.
        """
        with _same_randomness(self.seed, self.device):
            output = self.forward(batch.to(self.device))
        logits = _logits_of(output, self.name)
        tokens = batch.boundaries.num_tokens
        if logits.ndim == 3 and logits.shape[0] == 1:  # [1, T, V], as models have it
            logits = logits[0]
        if logits.ndim != 2 or logits.shape[0] < tokens:
            raise ProbeError(
                f"{self.name} returned logits of shape {tuple(logits.shape)} for {tokens} tokens; expected [T, V] or "
                "[1, T, V], one row of logits for each token in order"
            )
        logits = logits[:tokens]
        bad = ~torch.isfinite(logits).all(dim=-1)
        if bool(bad.any()):
            token = int(torch.nonzero(bad)[0])
            raise ProbeError(
                f"{self.name} returned NaN or infinite logits at token {token} of {tokens}; nothing can be measured on "
                "them. Check the weights and the precision"
            )
        return logits

    def parameters(self) -> list[nn.Parameter]:
        """All parameters behind the subject, each once."""
        return list({id(p): p for module in self.modules for p in module.parameters()}.values())

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """All modules in evaluation mode for the duration."""
        with evaluation(nn.ModuleList(self.modules)):
            yield


def subject_from(model: nn.Module | Forward, *, seed: int) -> Subject:
    """See a module or a callable as a subject.

    Raises:
        ProbeError: it is neither, or the callable runs no module at all.
    """
    if isinstance(model, nn.Module):
        embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        return Subject(
            name=type(model).__name__,
            forward=_module_forward(model),
            modules=(model,),
            device=next((p.device for p in model.parameters()), torch.device("cpu")),
            vocabulary=_vocabulary(model, embeddings),
            seed=seed,
        )
    if not callable(model):
        raise ProbeError(
            f"cannot probe a {type(model).__name__}; expected a torch module or a callable forward(batch) -> logits"
        )
    return _subject_from_callable(model, seed)


def _vocabulary(model: nn.Module, embeddings: list[nn.Embedding]) -> int:
    get_embeddings = getattr(model, "get_input_embeddings", None)
    own = get_embeddings() if callable(get_embeddings) else None
    if isinstance(own, nn.Embedding):
        return own.num_embeddings
    return embeddings[0].num_embeddings if embeddings else _CALLABLE_VOCABULARY


_CALLABLE_VOCABULARY = 32
"""Token ids for subjects whose vocabulary cannot be seen stay below this number."""


def _subject_from_callable(forward: Forward, seed: int) -> Subject:
    name = getattr(forward, "__qualname__", type(forward).__name__)
    device = _device_of_callable(forward, seed)
    roots: list[nn.Module] = []

    def hook(module: nn.Module, _args: Any, _output: Any) -> None:
        inside = {id(child) for child in module.modules()}
        roots[:] = [root for root in roots if id(root) not in inside] + [module]

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad(), _same_randomness(seed, device):
            forward(_trial_batch().to(device))
    except _FAILURES as error:
        raise ProbeError(
            f"{name} failed on a batch of one document of 3 tokens ({type(error).__name__}: {error}); expected a "
            "callable forward(batch) -> logits that takes a hermetic.PackedBatch"
        ) from error
    finally:
        handle.remove()
    embeddings = [m for root in roots for m in root.modules() if isinstance(m, nn.Embedding)]
    return Subject(
        name=name,
        forward=forward,
        modules=tuple(roots),
        device=device,
        vocabulary=embeddings[0].num_embeddings if embeddings else _CALLABLE_VOCABULARY,
        seed=seed,
    )


def _trial_batch() -> PackedBatch:
    return collate([{"input_ids": [2, 3, 4]}])


class _DeviceFoundError(Exception):
    """Ends the search for a callable's device; never leaves this module."""


def _device_of_callable(forward: Forward, seed: int) -> torch.device:
    """Where the first module with parameters that the callable runs has them; the CPU if it runs none."""
    found: list[torch.device] = []

    def hook(module: nn.Module, _args: Any) -> None:
        parameter = next(module.parameters(), None)
        if parameter is not None:
            found.append(parameter.device)
            raise _DeviceFoundError

    cpu = torch.device("cpu")
    handle = nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        with torch.no_grad(), _same_randomness(seed, cpu):
            forward(_trial_batch())
    except _DeviceFoundError:
        return found[0]
    except _FAILURES:
        return found[0] if found else cpu  # whatever is wrong shows again, and is reported, in the run that counts
    finally:
        handle.remove()
    return cpu


def _module_forward(model: nn.Module) -> Forward:
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    def forward(batch: PackedBatch) -> Any:
        inputs = batch.model_inputs()
        del inputs["labels"]  # the model's own loss is not what is measured
        if sum(length > 0 for length in batch.boundaries.document_lengths) == 1:  # alone means: not as a packed row
            # A sealed model counts packed documents from where it starts by itself, which in some is not 0.
            names = ("input_ids", "use_cache") if is_sealed(model) else ("input_ids", "position_ids", "use_cache")
            inputs = {name: inputs[name] for name in names}
        return model(**{k: v for k, v in inputs.items() if takes_all or k in parameters})

    return forward


def _logits_of(output: Any, name: str) -> torch.Tensor:
    for found in (output, getattr(output, "logits", None), getattr(output, "last_hidden_state", None)):
        if isinstance(found, torch.Tensor):
            return found
    raise ProbeError(
        f"{name} returned a {type(output).__name__} without logits; expected a tensor [T, V] or an output with .logits"
    )


@contextmanager
def packed_run(name: str) -> Iterator[None]:
    """Tell a subject that fails on packed documents from a bug of ours.

    Raises:
        UnsupportedError: whatever the subject itself raised inside.
    """
    try:
        yield
    except (ProbeError, torch.OutOfMemoryError):
        raise
    except _FAILURES as error:
        raise UnsupportedError(
            f"{name} runs a document alone and fails on packed ones ({type(error).__name__}: {error}); it cannot "
            "isolate documents with the kernels that are installed"
        ) from error


@contextmanager
def _same_randomness(seed: int, device: torch.device) -> Iterator[None]:
    # manual_seed reaches every CUDA device that is in use, so every one of them is put back
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() or device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield

"""What is probed: a model or any callable, seen as a function from a packed batch to logits.

Every run starts from the same random state, so that dropout in training mode does not look like a leak, and
leaves the caller's random state as it was.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import ProbeError, UnsupportedError
from hermetic.probe.randomness import Drawing, same_randomness, state_put_back
from hermetic.probe.wrapped import parameters_of, require_alone, undistributed
from hermetic.seal import is_sealed
from hermetic.seal.measure import FORWARD_FAILURES, evaluation, largest_difference
from hermetic.seal.precision import Float32, in_float32

Forward = Callable[[PackedBatch], Any]

LossForward = Callable[[PackedBatch, int | None], Any]
"""From a batch, and optionally the number of supervised tokens of the whole step, to an output with ``.loss``."""


@dataclass(kw_only=True, slots=True)
class Runs:
    """What is known of one batch."""

    packed: torch.Tensor | None = None
    """``[T, V]`` logits of the row."""
    alone: tuple[torch.Tensor, ...] | None = None
    """Logits of each document in a row of its own, until they are compared."""
    control: torch.Tensor | None = None
    """Those of the first document that has tokens."""
    apart: torch.Tensor | None = None
    """``[D]``: largest difference between packed and alone."""
    draws: bool | None = None
    """The packed run has drawn random numbers."""
    random: bool | None = None
    """The logits depend on the random state."""


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
    loss_forward: LossForward | None = None
    """Runs the subject with its own loss; ``None`` when it has none."""
    counts: bool = False
    """The loss can be told the number of supervised tokens of the whole step."""
    as_is: bool = False
    """A model that is not sealed, called with what a packed batch gives: what it does holds for this call."""
    precision: Float32 | None = None
    """In what it runs, if not in its own dtypes."""
    kept: dict[PackedBatch, Runs] = field(default_factory=dict)
    """Runs that several instruments compare with, made once for each batch."""

    def output_with_loss(self, batch: PackedBatch, *, count: int | None = None) -> Any:
        """What the subject returns together with its own loss.

        Raises:
            ProbeError: it has no loss, or one that is no finite scalar.
        """
        if self.loss_forward is None:
            raise ProbeError(
                f"{self.name} returns no loss; expected a model whose forward takes labels, or a callable that returns "
                "an object with .loss"
            )
        try:
            with self.same_randomness():
                output = self.loss_forward(batch.to(self.device), count)
        except torch.OutOfMemoryError:
            raise
        except FORWARD_FAILURES as error:
            raise ProbeError(
                f"{self.name} failed when it was run with its loss ({type(error).__name__}: {error}); expected it to "
                "take labels as batch.model_inputs() has them"
            ) from error
        loss = _loss_of(output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not bool(loss.isfinite()):
            found = (
                f"{float(loss.detach())}"
                if isinstance(loss, torch.Tensor) and loss.numel() == 1
                else type(loss).__name__
            )
            raise ProbeError(f"{self.name} returned {found} as its loss; expected a finite scalar")
        return output

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """``[T, V]`` logits of the real tokens of ``batch``.

        Raises:
            ProbeError: the output has no logits per token, or they are not finite.
        """
        with self.same_randomness():
            output = self.forward(batch.to(self.device))
        return self.rows_of(output, batch)

    def rows_of(self, output: Any, batch: PackedBatch) -> torch.Tensor:
        """The logits in what the subject returned for ``batch``, ``[T, V]``.

        Raises:
            ProbeError: as ``logits``.
        """
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
        if logits.numel() and not bool(torch.stack(logits.detach().aminmax()).isfinite().all()):
            token = int(torch.nonzero(~logits.isfinite().all(dim=-1))[0])
            raise ProbeError(
                f"{self.name} returned NaN or infinite logits at token {token} of {tokens}; nothing can be measured on "
                "them. Check the weights and the precision"
            )
        return logits

    @torch.no_grad()
    def row(self, batch: PackedBatch) -> torch.Tensor:
        """Logits of the row, ``[T, V]``; run once and kept."""
        runs = self.kept.setdefault(batch, Runs())
        if runs.packed is None:
            watched = Drawing(self.forward, self.device)
            runs.packed = replace(self, forward=watched).logits(batch)
            runs.draws = watched.drew
        return runs.packed

    def packed(self, batch: PackedBatch) -> tuple[torch.Tensor, ...]:
        """Logits of each document in the row, ``[length, V]``; run once and kept."""
        row = self.row(batch)
        return tuple(torch.split(row, list(batch.boundaries.document_lengths)))

    @torch.no_grad()
    def alone(self, batch: PackedBatch) -> tuple[torch.Tensor, ...]:
        """Logits of each document in a row of its own, ``[length, V]``, empty for an empty one; kept until compared.

        Raises:
            ProbeError: the subject fails on one of them.
        """
        runs = self.kept.setdefault(batch, Runs())
        if runs.alone is None:
            parts = enumerate(batch.unpack(batch.input_ids))
            runs.alone = tuple(self._alone(index, ids) if ids.numel() else torch.empty(0) for index, ids in parts)
            runs.control = next(logits for logits in runs.alone if logits.numel())
        return runs.alone

    def apart(self, batch: PackedBatch) -> torch.Tensor:
        """``[D]`` float64: largest logit difference of each document between packed and alone; then few are kept."""
        runs = self.kept.setdefault(batch, Runs())
        if runs.apart is None:
            pairs = zip(self.packed(batch), self.alone(batch), strict=True)
            runs.apart = torch.tensor([largest_difference(a, b) for a, b in pairs], dtype=torch.float64)
            runs.alone = None  # as large as the row's, and compared
        return runs.apart

    def control(self, batch: PackedBatch) -> torch.Tensor:
        """Logits of the first document that has tokens, alone; run once and kept."""
        runs = self.kept.setdefault(batch, Runs())
        if runs.control is None:
            self.alone(batch)
        assert runs.control is not None  # noqa: S101 - running alone has set it
        return runs.control

    def _alone(self, index: int, ids: torch.Tensor) -> torch.Tensor:
        try:
            return self.logits(collate([{"input_ids": ids}]))
        except ProbeError:
            raise
        except FORWARD_FAILURES as error:
            raise ProbeError(
                f"{self.name} failed on document {index} alone ({type(error).__name__}: {error}); "
                "expected it to run before packing is probed"
            ) from error

    @contextmanager
    def same_randomness(self) -> Iterator[None]:
        """The random state of every run for the duration; the caller's is put back."""
        with same_randomness(self.seed, self.device), state_put_back(self.modules):
            yield

    def draws(self, batch: PackedBatch) -> bool:
        """Whether the packed run has drawn random numbers from torch's generators."""
        self.row(batch)
        return self.kept[batch].draws is not False

    @torch.no_grad()
    def is_random(self, batch: PackedBatch) -> bool:
        """Whether another random state alone changes the logits: dropout is active."""
        if not self.draws(batch):
            return False
        runs = self.kept[batch]
        if runs.random is None:
            runs.random = not torch.equal(self.row(batch), replace(self, seed=self.seed + 1).logits(batch))
        return runs.random

    @contextmanager
    def evaluation(self) -> Iterator["Subject"]:
        """The subject with all modules in evaluation mode for the duration."""
        with evaluation(nn.ModuleList(self.modules)):
            yield replace(self, kept={})

    @contextmanager
    def in_float32(self) -> Iterator["Subject"]:
        """The subject computing in float32 for the duration, whatever its dtypes are."""
        with in_float32(self.modules, self.device) as precision:
            yield replace(self, precision=precision, kept={})

    def parameters(self) -> list[nn.Parameter]:
        """All parameters behind the subject, each once."""
        return list({id(p): p for module in self.modules for p in module.parameters()}.values())


def subject_from(model: nn.Module | Forward, *, seed: int) -> Subject:
    """See a module or a callable as a subject.

    Raises:
        ProbeError: it is neither, the callable runs no module at all, or other processes would have to take part.
    """
    if isinstance(model, nn.Module):
        model = undistributed(model)
        embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        return Subject(
            name=type(model).__name__,
            forward=_module_forward(model),
            modules=(model,),
            device=next((p.device for p in model.parameters()), torch.device("cpu")),
            vocabulary=_vocabulary(model, embeddings),
            seed=seed,
            loss_forward=_module_loss_forward(model) if "labels" in parameters_of(model) else None,
            counts=_takes(model, "num_items_in_batch"),
            as_is=not is_sealed(model),
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
        with torch.no_grad(), same_randomness(seed, device):
            output = forward(_trial_batch().to(device))
    except FORWARD_FAILURES as error:
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
        loss_forward=_callable_loss_forward(forward) if isinstance(_loss_of(output), torch.Tensor) else None,
        counts="num_items_in_batch" in inspect.signature(forward).parameters,
    )


def _trial_batch() -> PackedBatch:
    return collate([{"input_ids": [0, 1, 0]}])  # ids that every vocabulary has


class _DeviceFoundError(Exception):
    """Ends the search for a callable's device; never leaves this module."""


def _device_of_callable(forward: Forward, seed: int) -> torch.device:
    """Where the first module with parameters that the callable runs has them; the CPU if it runs none."""
    found: list[nn.Module] = []

    def hook(module: nn.Module, _args: Any) -> None:
        if next(module.parameters(), None) is not None:
            found.append(module)
            raise _DeviceFoundError

    cpu = torch.device("cpu")
    handle = nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        with torch.no_grad(), same_randomness(seed, cpu):
            forward(_trial_batch())
    except (_DeviceFoundError, *FORWARD_FAILURES):
        pass  # whatever is wrong shows again, and is reported, in the run that counts
    finally:
        handle.remove()
    if not found:
        return cpu
    require_alone(found[0])
    return next(found[0].parameters()).device


def _module_forward(model: nn.Module) -> Forward:
    def forward(batch: PackedBatch) -> Any:
        inputs = _module_inputs(model, batch)
        del inputs["labels"]  # the model's own loss is an instrument of its own
        return model(**{name: value for name, value in inputs.items() if _takes(model, name)})

    return forward


def _module_loss_forward(model: nn.Module) -> LossForward:
    def forward(batch: PackedBatch, count: int | None) -> Any:
        inputs = _module_inputs(model, batch)
        if count is not None:
            inputs["num_items_in_batch"] = count
        return model(**{name: value for name, value in inputs.items() if _takes(model, name)})

    return forward


def _callable_loss_forward(forward: Callable[..., Any]) -> LossForward:
    def run(batch: PackedBatch, count: int | None) -> Any:
        return forward(batch) if count is None else forward(batch, num_items_in_batch=count)

    return run


def _module_inputs(model: nn.Module, batch: PackedBatch) -> dict[str, Any]:
    inputs = batch.model_inputs()
    if sum(length > 0 for length in batch.boundaries.document_lengths) > 1:
        return inputs
    names = ["input_ids", "use_cache", "labels"]  # alone means: not as a packed row
    if not is_sealed(model):  # a sealed model counts packed documents from where it starts by itself: in some not 0
        names.append("position_ids")
    return {name: inputs[name] for name in names}


def _takes(model: nn.Module, name: str) -> bool:
    parameters = parameters_of(model)
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _loss_of(output: Any) -> Any:
    return getattr(output, "loss", None)


def _logits_of(output: Any, name: str) -> torch.Tensor:
    for found in (output, getattr(output, "logits", None), getattr(output, "last_hidden_state", None)):
        if isinstance(found, torch.Tensor):
            return found
    raise ProbeError(
        f"{name} returned a {type(output).__name__}, which has no .logits; expected a tensor [T, V] or an output with "
        ".logits. Probe a function that takes them out: lambda batch: model(**batch.model_inputs())[0]"
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
    except FORWARD_FAILURES as error:
        raise UnsupportedError(
            f"{name} runs a document alone and fails on packed ones ({type(error).__name__}: {error}); it cannot "
            "isolate documents with the kernels that are installed"
        ) from error

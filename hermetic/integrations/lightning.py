"""Lightning over packed rows: a data module, the loss of an optimizer step, and a callback that probes before one.

Guarantee: every row is in each epoch once on any number of ranks; the loss of a step is that of its documents, however
Lightning accumulates and averages; a mean that is logged with ``batch_size`` is that of all tokens or documents; and
what ``hermetic.guard`` guarantees. Price: importing this module imports Lightning; the micro-batches of a step are
collated before the first is trained on.
"""

import importlib
import importlib.util
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hermetic.errors import HermeticError, MissingDependencyError, ProbeError, TrainError
from hermetic.integrations.batches import batch_from_inputs, logits_of_batch, no_loss
from hermetic.integrations.loading import RowLoader, row_loader
from hermetic.loss import Reduction, loss_denominator, packed_loss
from hermetic.probe import Guard, LeakReport, guard
from hermetic.probe.guard import OnLeak, check_options

STEP_WEIGHT = "step_weight"
"""The key under which a micro-batch has what its loss is divided by."""


def _class_of_lightning(name: str) -> Any:
    """A class of whichever of Lightning's two packages is installed."""
    for package, home in (("lightning", "lightning.pytorch"), ("pytorch_lightning", "pytorch_lightning")):
        if importlib.util.find_spec(package) is not None:
            return operator.attrgetter(name)(importlib.import_module(home))
    raise MissingDependencyError(
        "hermetic.integrations.lightning needs the package 'lightning', which is not installed; expected the extra "
        "that brings it: pip install 'hermetic[lightning]'"
    )


_ACCUMULATION_SCHEDULER = _class_of_lightning("callbacks.GradientAccumulationScheduler")


class DealtOut:
    """The batches of a ``RowLoader``, which are one rank's already: Lightning deals out every ``DataLoader`` anew."""

    def __init__(self, loader: RowLoader) -> None:
        """Wrap a loader.

        Args:
            loader: of model inputs, as ``PackedCollator`` makes them.
        """
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.loader


class WeighedLoader(DealtOut):
    """The micro-batches of a ``RowLoader``, each with what its loss is divided by.

    Lightning divides a micro-batch's loss by ``accumulate_grad_batches`` and averages gradients over ranks; the divisor
    makes up for both. A position inside an epoch is saved and restored with Lightning's checkpoints.
    """

    def __init__(
        self,
        loader: RowLoader,
        *,
        accumulation_steps: int,
        num_ranks: int,
        reduction: Reduction,
        limit: int | None = None,
    ) -> None:
        """Wrap a loader.

        Args:
            loader: of model inputs, as ``PackedCollator`` makes them.
            accumulation_steps: micro-batches of an optimizer step.
            num_ranks: ranks that average gradients.
            reduction: as in ``packed_loss``.
            limit: micro-batches of an epoch after which Lightning stops and takes its last step.
        """
        super().__init__(loader)
        self.sampler: Any = loader.batch_sampler
        """Whose epoch Lightning sets."""
        self.accumulation_steps = accumulation_steps
        self.num_ranks = num_ranks
        self.reduction = reduction
        self.limit = limit
        self._given = 0
        self._resumed: Mapping[str, int] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        resumed, self._resumed = self._resumed, None
        skipped = resumed["given"] if resumed is not None and resumed["epoch"] == self.sampler.epoch else 0
        self._given = 0
        batches = itertools.islice(self.loader, self.limit)
        while step := list(itertools.islice(batches, self.accumulation_steps)):
            weight = self._weight(step)
            for inputs in step:
                self._given += 1
                if self._given > skipped:
                    yield {**inputs, STEP_WEIGHT: weight}

    def _weight(self, step: list[dict[str, Any]]) -> float:
        group = torch.distributed.group.WORLD if self.num_ranks > 1 else None
        weight = loss_denominator(map(batch_from_inputs, step), reduction=self.reduction, group=group)
        return weight / (self.accumulation_steps * self.num_ranks)

    def state_dict(self) -> dict[str, int]:
        """Micro-batches that were given of which epoch."""
        return {"epoch": self.sampler.epoch, "given": self._given}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next pass of that epoch begin behind what was given."""
        self._resumed = dict(state)


class PackedDataModule(_class_of_lightning("LightningDataModule")):  # type: ignore[misc]  # chosen at run time
    """Packed rows for ``Trainer.fit``: ``PackedDataModule(PackedDataset("rows"), rows_per_batch=2)``."""

    def __init__(
        self,
        train: Any,
        *,
        rows_per_batch: int,
        evaluation: Any = None,
        seed: int | None = 0,
        window: int = 1,
        reduction: Reduction = "token",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        """Make a data module.

        Args:
            train: rows, such as a ``hermetic.data.PackedDataset``.
            rows_per_batch: rows of one micro-batch.
            evaluation: rows to evaluate on.
            seed: as in ``row_loader``.
            window: as in ``row_loader``.
            reduction: as in ``packed_loss``.
            collate_fn: as in ``row_loader``.
            **options: of the DataLoaders, such as ``num_workers``.
        """
        super().__init__()
        self.train = train
        self.evaluation = evaluation
        self.rows_per_batch = rows_per_batch
        self.seed = seed
        self.window = window
        self.reduction = reduction
        self.collate_fn = collate_fn
        self.options = options
        if evaluation is not None:  # Lightning evaluates where this is there
            self.val_dataloader = self.evaluation_dataloader

    def train_dataloader(self) -> WeighedLoader:
        """This rank's micro-batches, with ``step_weight``.

        Raises:
            TrainError: a callback would change the micro-batches of a step while training.
        """
        if any(isinstance(callback, _ACCUMULATION_SCHEDULER) for callback in self.trainer.callbacks):
            raise TrainError(
                "the Trainer has a GradientAccumulationScheduler, which changes the micro-batches of a step when "
                "they are weighed already; expected one number for the whole run: Trainer(accumulate_grad_batches=...)"
            )
        accumulation = self.trainer.accumulate_grad_batches
        loader = self._loader(self.train, accumulation_steps=accumulation, seed=self.seed, window=self.window)
        limit = self.trainer.limit_train_batches
        return WeighedLoader(
            loader,
            accumulation_steps=accumulation,
            num_ranks=self.trainer.world_size,
            reduction=self.reduction,
            limit=int(limit * len(loader)) if isinstance(limit, float) else limit,
        )

    def evaluation_dataloader(self) -> DealtOut:
        """This rank's rows of the evaluation, in order; a rank without a row runs one without a target."""
        return DealtOut(self._loader(self.evaluation, seed=None))

    def _loader(self, rows: Any, **options: Any) -> RowLoader:
        return row_loader(
            rows,
            rows_per_batch=self.rows_per_batch,
            rank=self.trainer.global_rank,
            num_ranks=self.trainer.world_size,
            collate_fn=self.collate_fn,
            **options,
            **self.options,
        )


def packed_step_loss(model: Any, inputs: Mapping[str, Any], *, reduction: Reduction = "token") -> torch.Tensor:
    """The loss of a micro-batch of a ``PackedDataModule``, for ``training_step`` to return.

    Args:
        model: the language model.
        inputs: what the data module gave.
        reduction: that of the data module.

    Returns:
        A scalar. Its mean over the micro-batches and ranks of a step is the loss of the step.
    """
    batch, logits = _run(model, inputs)
    if not batch.num_supervised_tokens:
        return no_loss(logits)
    return packed_loss(logits, batch, reduction=reduction, denominator=inputs[STEP_WEIGHT])


def packed_batch_loss(
    model: Any, inputs: Mapping[str, Any], *, reduction: Reduction = "token"
) -> tuple[torch.Tensor, float]:
    """The loss of a batch alone and its weight, for ``validation_step`` to log.

    ``self.log("val_loss", loss, batch_size=weight, on_epoch=True, sync_dist=True)`` is then the loss of the whole set,
    however it is packed and batched.

    Args:
        model: the language model.
        inputs: a batch.
        reduction: as in ``packed_loss``.

    Returns:
        A scalar, and what it was divided by: 0 for a batch without targets.
    """
    batch, logits = _run(model, inputs)
    if not batch.num_supervised_tokens:
        return no_loss(logits), 0.0
    return packed_loss(logits, batch, reduction=reduction), loss_denominator([batch], reduction=reduction)


def _run(model: Any, inputs: Mapping[str, Any]) -> tuple[Any, torch.Tensor]:
    called = {name: value for name, value in inputs.items() if name not in ("labels", STEP_WEIGHT)}
    return batch_from_inputs(inputs), logits_of_batch(model(**called).logits)


class LeakGuard(_class_of_lightning("Callback")):  # type: ignore[misc]  # chosen at run time
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

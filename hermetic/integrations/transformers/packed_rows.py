"""What any Trainer made of transformers' needs to train and evaluate on packed rows as on documents alone.

**Algorithm.** A mixin over public methods of the Trainer: its loaders are hermetic's, its step is divided by what the
whole step weighs, and its evaluation adds up losses and weights and divides once.
**Guarantee.** Every row is in each epoch once, whatever the number of ranks, and the Trainer's count of steps, epochs
and learning rates is the count of rows. The loss of a step, and the loss of an evaluation, are the same however the
documents were packed, batched and dealt out. A resumed run goes on with the rows that an uninterrupted one would see.
**Price.** Loaders are not accelerate's, so batches are copied to the device when they are used. A loss other than the
token's costs TRL's SFTTrainer a second forward, for its own metrics.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.utils.data import IterableDataset
from transformers.trainer_utils import EvalLoopOutput

from hermetic.data import PackedStream
from hermetic.errors import TrainError
from hermetic.integrations.batches import batch_from_inputs, without_targets
from hermetic.integrations.loading import row_loader
from hermetic.integrations.transformers.loss import PackedLoss
from hermetic.integrations.transformers.passes import Passes, loader_of, loader_of_passes, pass_of
from hermetic.loss import Reduction, loss_denominator

_STRATEGIES = ("random", "sequential")


class PackedRows:
    """Mix into a Trainer, in front of it: ``class RowTrainer(PackedRows, SFTTrainer)``.

    ``train_dataset`` and ``eval_dataset`` are rows, as ``PackedDataset``, ``RowDataset`` or TRL's packed sets have
    them, or documents, with the ``data_collator`` for it.
    """

    args: Any
    state: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any

    def __init__(
        self, *args: Any, loss_reduction: Reduction | None = None, balance_window: int = 1, **kwargs: Any
    ) -> None:
        """Make a Trainer.

        Args:
            *args: the Trainer's own.
            loss_reduction: ``"token"``, ``"document"`` or ``"sqrt"``, as in ``hermetic.packed_loss``; ``None`` leaves
                the loss to the Trainer and its model, who are told the supervised tokens of the step if the model's
                ``forward`` takes such arguments, and evaluates by tokens.
            balance_window: optimizer steps among which the work of rows is evened over ranks; with 1 the rows of a step
                are the same for any number of ranks.
            **kwargs: the Trainer's own.

        Raises:
            TrainError: an argument of the Trainer's would leave rows out or order them otherwise.
        """
        super().__init__(*args, **kwargs)
        self.balance_window = balance_window
        self.loss_reduction = loss_reduction or "token"
        if loss_reduction is not None:
            smoothing = self.args.label_smoothing_factor
            self.compute_loss_func: Any = PackedLoss(loss_reduction, label_smoothing=smoothing)
        self._evaluated: list[tuple[float, float]] | None = None
        self._check_arguments()

    def _check_arguments(self) -> None:
        strategy = self.args.train_sampling_strategy
        if strategy not in _STRATEGIES:
            raise TrainError(
                f"train_sampling_strategy is {strategy!r}, expected one of {', '.join(map(repr, _STRATEGIES))}: rows "
                "are balanced over ranks already, and balance_window says how far"
            )
        if self.args.dataloader_drop_last:
            raise TrainError(
                "dataloader_drop_last is True, which leaves rows out of every epoch; expected False: a last step with "
                "fewer rows is weighed by what is in it"
            )
        if self.num_data_ranks > 1 and not self.args.average_tokens_across_devices:
            raise TrainError(
                f"average_tokens_across_devices is False on {self.num_data_ranks} ranks, so that each would divide by "
                "its own count and documents would weigh by who else is on their rank; expected True"
            )

    @property
    def num_data_ranks(self) -> int:
        """Ranks that read rows of their own; those of a tensor- or sequence-parallel group read the same."""
        trainer: Any = self
        shared = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
        return max(1, int(self.args.world_size) // int(shared))

    @property
    def _data_rank(self) -> int:
        """Whose rows this process reads, of ``num_data_ranks``."""
        return int(self.args.process_index) * self.num_data_ranks // max(1, int(self.args.world_size))

    def get_train_dataloader(self) -> Any:
        """Every row once an epoch, as many batches for each rank, work as even as it can be.

        Raises:
            TrainError: there is no training set, or one without a length that does not give this rank its rows; or the
                loss is the model's own, and nobody tells it what a step of several micro-batches weighs.
        """
        if self.train_dataset is None:
            raise TrainError("there is no train_dataset, expected rows to train on")
        self._check_weighing()
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if isinstance(self.train_dataset, IterableDataset):
            return self._loader_of_passes(self.train_dataset, seed)
        return self._row_loader(
            self.train_dataset,
            rows_per_batch=self.args.train_batch_size,
            accumulation_steps=self.args.gradient_accumulation_steps,
            seed=None if self.args.train_sampling_strategy == "sequential" else seed,
            window=self.balance_window,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Every row once, in order; a rank without a row where others have one runs one that weighs nothing.

        Raises:
            TrainError: there is no evaluation set, or one without a length on several ranks.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        if dataset is None:
            raise TrainError("there is no eval_dataset, expected rows to evaluate on")
        if isinstance(dataset, IterableDataset):
            return self._stream_loader(dataset, self.args.eval_batch_size)
        return self._row_loader(dataset, rows_per_batch=self.args.eval_batch_size, seed=None)

    def _check_weighing(self) -> None:
        """Refuse a loss that is a mean of each micro-batch's mean, by which a token weighs by its company."""
        trainer: Any = self
        scaled = trainer.loss_is_scaled_for_ga
        if scaled is None:
            scaled = trainer.model_accepts_loss_kwargs or self.compute_loss_func is not None
        parts = self.args.gradient_accumulation_steps * self.num_data_ranks
        if not scaled and parts > 1:
            raise TrainError(
                f"the loss is left to {type(trainer.model).__name__}, which takes no num_items_in_batch, and a step "
                f"has {parts} micro-batches: it would be the mean of their means, in which a token weighs by its "
                "company; expected loss_reduction='token'. A Trainer whose own compute_loss divides by the whole step "
                "says so with loss_is_scaled_for_ga=True"
            )

    def _row_loader(self, dataset: Any, **options: Any) -> Any:
        return row_loader(
            dataset,
            num_ranks=self.num_data_ranks,
            rank=self._data_rank,
            collate_fn=self.data_collator,
            **options,
            **self._options(),
        )

    def _loader_of_passes(self, dataset: Any, seed: int) -> Any:
        """As many passes as the steps take, each in its own order."""

        def batches_of(number: int) -> Any:
            return self._stream_loader(pass_of(dataset, number), self.args.train_batch_size, seed=seed + number)

        def behind() -> int:
            steps = 0 if self.args.ignore_data_skip else self.state.global_step
            return int(steps * self.args.gradient_accumulation_steps)

        self._check_dealt_out(dataset)
        return loader_of_passes(Passes(batches_of, per_step=self.args.gradient_accumulation_steps, behind=behind))

    def _stream_loader(self, dataset: Any, rows_per_batch: int, *, seed: int = 0) -> Any:
        """Not accelerate's loader, which cuts tensors of a batch, and with them edges, to its number of rows."""
        self._check_dealt_out(dataset)
        batch_size = None if isinstance(dataset, PackedStream) else rows_per_batch
        return loader_of(dataset, seed=seed, batch_size=batch_size, collate_fn=self.data_collator, **self._options())

    def _check_dealt_out(self, dataset: Any) -> None:
        """Refuse a data set without a length that would not give each rank rows of its own, and as many batches."""
        ranks, rank = self.num_data_ranks, self._data_rank
        if not isinstance(dataset, PackedStream):
            if ranks > 1:
                raise TrainError(
                    f"the data set is a {type(dataset).__name__}, which has no length, so nobody can deal it out to "
                    f"{ranks} ranks without leaving rows out or repeating some; expected a PackedStream, or rows with "
                    "a length"
                )
        elif (dataset.rank, dataset.num_ranks) != (rank, ranks):
            raise TrainError(
                f"the stream is that of rank {dataset.rank} of {dataset.num_ranks}, and this process is rank {rank} of "
                f"{ranks}; expected PackedStream(rank={rank}, num_ranks={ranks})"
            )
        elif ranks > 1 and dataset.ragged_end == "short" and dataset.settings.epochs is not None:
            raise TrainError(
                f"the stream has ragged_end='short', by which some of {ranks} ranks get one batch less, and the others "
                "would wait for them; expected ragged_end='drop', or epochs=None"
            )

    def _options(self) -> dict[str, Any]:
        """The DataLoader options among the Trainer's arguments."""
        workers = self.args.dataloader_num_workers
        options = {"num_workers": workers, "pin_memory": self.args.dataloader_pin_memory}
        if workers:
            options["persistent_workers"] = self.args.dataloader_persistent_workers
            options["prefetch_factor"] = self.args.dataloader_prefetch_factor
        return options

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of a step, and what their losses are divided by: the weight of all of them on all ranks."""
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]  # the Trainer's
        loss = self.compute_loss_func
        if batches and isinstance(loss, PackedLoss) and loss.reduction != "token":
            count = self.over_ranks(sum(_weight_of(batch_from_inputs(inputs), loss.reduction) for inputs in batches))
        # The Trainer steps after a full number of micro-batches, and a loader of the caller's own may end before.
        blanks = num_batches - len(batches) if batches else 0
        return [*batches, *(without_targets(batches[0]) for _ in range(blanks))], count

    def over_ranks(self, weight: float) -> torch.Tensor:
        """What this rank's micro-batches weigh, added over all ranks where the Trainer adds its own counts."""
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            weight = sum(gather_object([weight])) / (self.args.world_size // self.num_data_ranks)
        return torch.tensor(weight, dtype=torch.float64)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss; in an evaluation that of this batch alone, whose weight is noted beside it."""
        loss_func, evaluated = self.compute_loss_func, self._evaluated
        if not isinstance(loss_func, PackedLoss) and evaluated is None:
            return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]  # the Trainer's
        batch = batch_from_inputs(inputs)
        if isinstance(loss_func, PackedLoss):
            loss_func.batch = batch
        if evaluated is None:
            return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]  # the Trainer's
        kwargs["num_items_in_batch"] = None
        found = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]  # the Trainer's
        self.note(found[0] if isinstance(found, tuple) else found, _weight_of(batch, self.loss_reduction))
        return found

    def note(self, loss: Any, weight: float) -> None:
        """Keep the loss of a batch of an evaluation, and what it was divided by."""
        if self._evaluated is not None:
            self._evaluated.append((float(loss) * weight if weight else 0.0, weight))

    def evaluation_loop(
        self, dataloader: Any, description: str, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """The Trainer's loop, with the loss of all documents instead of a mean of means.

        Raises:
            TrainError: no token of the set is supervised, so that it has no loss.
        """
        self._evaluated = []
        try:
            output: EvalLoopOutput = super().evaluation_loop(  # type: ignore[misc]  # the Trainer's
                dataloader, description, *args, metric_key_prefix=metric_key_prefix, **kwargs
            )
            terms = gather_object(self._evaluated)
        finally:
            self._evaluated = None
        name = f"{metric_key_prefix}_loss"
        metrics = output.metrics or {}
        return output._replace(metrics={**metrics, name: _quotient(terms)}) if name in metrics else output


def _weight_of(batch: Any, reduction: Reduction) -> float:
    """What the batch's loss was divided by; 0 where nothing is supervised."""
    return loss_denominator([batch], reduction=reduction) if batch.num_supervised_tokens else 0.0


def _quotient(terms: list[tuple[float, float]]) -> float:
    weight = sum(weight for _, weight in terms)
    if weight == 0:
        raise TrainError(
            "no token of the evaluation set is supervised, so it has no loss; check its labels or loss masks"
        )
    return sum(loss for loss, _ in terms) / weight

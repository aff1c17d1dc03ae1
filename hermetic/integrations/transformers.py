"""transformers' Trainer over packed rows: collators, the loss, a Trainer that probes before it steps, and a guard.

Guarantee: the loss of an optimizer step is the sum over its supervised tokens divided by their number over
all its micro-batches and ranks, however they were packed; and no step is taken on a model whose packed
documents reach each other, as measured on the first batch that the Trainer itself collated. ``LeakGuard`` brings
the second half of that to any Trainer.
Price: the probe, once: some thirty passes over at most six documents of that batch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback
from transformers.utils import logging

from hermetic.batch import PackedBatch, collate
from hermetic.constants import IGNORE_INDEX
from hermetic.data import PackedData
from hermetic.data.feed import collate_packed_rows, documents_of_row
from hermetic.errors import HermeticError, LeakError, NotPackedError, TrainError
from hermetic.loss import token_loss
from hermetic.probe import Guard, LeakReport, guard, probe_call
from hermetic.probe.guard import OnLeak, check_options

Row = list[dict[str, Any]] | Mapping[str, Any]
"""The documents of one row, each with ``input_ids`` and ``labels``; or a row of a ``hermetic.data.PackedDataset``."""


class RowDataset(Dataset[Row]):
    """The rows of a packed folder for a DataLoader: one item is the list of a row's documents."""

    def __init__(self, packed: PackedData) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Row:
        return list(self.packed.documents_of_row(index))

    def __iter__(self) -> Iterator[Row]:
        return self.packed.rows()


class PackedCollator:
    """Rows to the inputs of a sealed model: one flat stream, labels included.

    Several rows are simply more documents in the stream.
    """

    def __init__(self, *, pad_to_multiple: int | None = None, pad_token_id: int = 0) -> None:
        self.pad_to_multiple = pad_to_multiple
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """``batch.model_inputs()`` of all documents of ``rows``."""
        return collate_rows(rows, pad_to_multiple=self.pad_to_multiple, pad_token_id=self.pad_token_id).model_inputs()


class PaddedCollator:
    """The unpacked baseline: the same documents, one to a row, padded on the right to the longest."""

    def __init__(self, *, pad_token_id: int = 0) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """``input_ids``, ``labels`` and ``attention_mask``, each ``[D, longest]``."""
        batch = collate_rows(rows)
        ids, labels = batch.unpack(batch.input_ids), batch.unpack(batch.labels)
        ones = [torch.ones_like(document) for document in ids]
        return {
            name: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=blank)
            for name, parts, blank in (
                ("input_ids", ids, self.pad_token_id),
                ("labels", labels, IGNORE_INDEX),
                ("attention_mask", ones, 0),
            )
        }


def collate_rows(rows: Sequence[Row], **options: Any) -> PackedBatch:
    """All documents of ``rows`` in one batch; options as in ``hermetic.collate``."""
    packed = [row for row in rows if isinstance(row, Mapping)]
    if packed and len(packed) == len(rows):
        return collate_packed_rows(packed, **options)
    documents = (documents_of_row(row) if isinstance(row, Mapping) else row for row in rows)
    return collate([document for row in documents for document in row], **options)


def packed_token_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Trainer's ``compute_loss_func``: token-level, over the supervised tokens of the whole optimizer step.

    Args:
        outputs: the model's, with ``logits`` of ``[B, S, V]``.
        labels: ``[B, S]`` unshifted, -100 on the first token of every document and every row.
        num_items_in_batch: supervised tokens of the step, as the Trainer counts them over micro-batches and
            ranks; by default those of ``labels``.
    """
    if num_items_in_batch is None:
        return token_loss(outputs.logits, labels)
    # a step without supervised tokens has a sum of 0 to divide
    denominator = torch.as_tensor(num_items_in_batch).clamp(min=1)
    return token_loss(outputs.logits, labels, denominator=denominator)


class SealedTrainer(Trainer):
    """A Trainer for sealed models: token-level loss, and a probe of the first batch before the first step.

    Takes what ``transformers.Trainer`` takes; the loss is always ``packed_token_loss``. Use it with
    ``PackedCollator`` and ``remove_unused_columns=False``.
    """

    def __init__(self, *args: Any, probe_first_batch: bool = True, **kwargs: Any) -> None:
        """Make a Trainer.

        Args:
            *args: as ``transformers.Trainer``.
            probe_first_batch: ``False`` for rows of one document each, which have no neighbours to probe.
            **kwargs: as ``transformers.Trainer``.

        Raises:
            TrainError: several GPUs are in sight of one process.
        """
        super().__init__(*args, **kwargs)
        self.probe_first_batch = probe_first_batch
        if self.args.n_gpu > 1:
            raise TrainError(
                f"one process sees {self.args.n_gpu} GPUs, and transformers would cut the stream of documents into as "
                "many pieces; expected one GPU per process. Start with torchrun, or set CUDA_VISIBLE_DEVICES=0"
            )
        self.compute_loss_func = packed_token_loss
        self.leak_report: LeakReport | None = None
        """What the probe of the first packed batch found; ``None`` before it and for padded rows."""

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch; the first one is probed before.

        Raises:
            LeakError: the probe's verdict on the first batch is not ``sealed``. No step was taken.
            TrainError: the batch does not say where its documents start.
        """
        if self.probe_first_batch and self.leak_report is None:
            self.leak_report = self._probed(model, inputs)
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def _probed(self, model: torch.nn.Module, inputs: dict[str, Any]) -> LeakReport | None:
        if "cu_seq_lens_q" not in inputs:
            raise TrainError(
                f"the first batch holds {sorted(inputs)} and no cu_seq_lens_q, so nobody can tell where its documents "
                "start; expected the batches of PackedCollator. For rows of one document each pass "
                "probe_first_batch=False"
            )
        called = {name: value for name, value in inputs.items() if name != "labels"}  # the loss is not the model's
        try:
            report = probe_call(self.accelerator.unwrap_model(model), (), called)
        except NotPackedError:
            return None  # a lone token has no neighbour, not even when it is cut in two
        if report.verdict != "sealed":
            raise LeakError(f"training did not start. {report.summary()}")
        return report


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

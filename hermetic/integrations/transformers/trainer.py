"""A Trainer for sealed models, which probes before it steps.

Guarantee: that of ``PackedRows``; and no step is taken on a model whose packed documents reach each other, as measured
on the first batch that the Trainer itself collated. Price: the probe, once: some thirty passes over at most six
documents of that batch.
"""

from typing import Any

import torch
from transformers import Trainer

from hermetic.errors import LeakError, NotPackedError, TrainError
from hermetic.integrations.transformers.packed_rows import PackedRows
from hermetic.loss import Reduction
from hermetic.probe import LeakReport, probe_call


class SealedTrainer(PackedRows, Trainer):
    """A Trainer for sealed models: the loss of documents, and a probe of the first batch before the first step.

    Takes what ``transformers.Trainer`` takes but ``compute_loss_func``. Use it with ``PackedCollator`` and
    ``remove_unused_columns=False``.
    """

    def __init__(
        self,
        *args: Any,
        probe_first_batch: bool = True,
        loss_reduction: Reduction = "token",
        **kwargs: Any,
    ) -> None:
        """Make a Trainer.

        Args:
            *args: as ``transformers.Trainer``.
            probe_first_batch: ``False`` for rows of one document each, which have no neighbours to probe.
            loss_reduction: ``"token"``, ``"document"`` or ``"sqrt"``, as in ``hermetic.packed_loss``.
            **kwargs: as ``PackedRows`` and ``transformers.Trainer``.

        Raises:
            TrainError: several GPUs are in sight of one process; or as ``PackedRows``.
            LossError: the reduction is unknown.
        """
        super().__init__(*args, loss_reduction=loss_reduction, **kwargs)
        self.probe_first_batch = probe_first_batch
        if self.args.n_gpu > 1:
            raise TrainError(
                f"one process sees {self.args.n_gpu} GPUs, and transformers would cut the stream of documents into as "
                "many pieces; expected one GPU per process. Start with torchrun, or set CUDA_VISIBLE_DEVICES=0"
            )
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

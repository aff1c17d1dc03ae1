"""TRL over packed rows: supervised fine-tuning, and preference optimization on pairs that share a row.

**Algorithm.** ``PackedSFTTrainer`` is TRL's ``SFTTrainer`` with ``PackedRows`` in front. TRL's ``DPOTrainer`` pads each
pair (its ``padding_free`` is switched off since a refactoring), so ``PackedDPOTrainer`` is transformers' Trainer with
``hermetic.loss.dpo_loss``: one pass of policy and reference over a row, whose documents carry their role.
**Guarantee.** That of ``PackedRows``. No step is taken on a model whose packed documents reach each other: supervised
fine-tuning probes its first packed batch, and preference optimization wants models that are sealed. The loss of a
preference step is the mean over all of its pairs, on all micro-batches and ranks, which is TRL's where every
micro-batch holds as many pairs. **Price.** One probe; the logits of a row.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import Trainer
from trl import SFTTrainer  # type: ignore[attr-defined]  # TRL names it in a table of its own

from hermetic.batch.integers import int64_array
from hermetic.data import PackedDataset
from hermetic.errors import TrainError
from hermetic.integrations.batches import batch_from_inputs, logits_of_batch, no_loss
from hermetic.integrations.rows import PackedCollator, RowDataset, collate_rows
from hermetic.integrations.transformers import LeakGuard, PackedRows
from hermetic.loss import document_log_probs, dpo_loss, pairs_from_roles, supervised_tokens
from hermetic.loss.pairs import NEITHER
from hermetic.seal import is_sealed

PREFERENCE_COLUMNS: Final = ("input_ids", "labels", "seq_lengths", "roles")
"""What ``PackedDataset("rows", columns=PREFERENCE_COLUMNS)`` reads of a folder of preference pairs."""


class PackedSFTTrainer(PackedRows, SFTTrainer):
    """TRL's ``SFTTrainer`` on rows of hermetic's, or on what TRL packs itself.

    ``PackedSFTTrainer(model=hermetic.seal(model), args=SFTConfig(...), train_dataset=PackedDataset("rows"))``. Rows of
    hermetic's are trained as they are; any other data set is TRL's to prepare, with ``packing=True`` as it documents.
    A model that is not sealed is trained if the probe finds that it keeps the documents apart as TRL calls it.
    """

    def __init__(
        self,
        *args: Any,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        data_collator: Any = None,
        probe_first_batch: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make a Trainer.

        Args:
            *args: as ``SFTTrainer``; ``args`` by name.
            train_dataset: rows, or a data set for TRL.
            eval_dataset: as ``train_dataset``, or a dictionary of such.
            data_collator: as ``SFTTrainer``; ``PackedCollator()`` by default for rows of hermetic's.
            probe_first_batch: probe the first packed batch before its step, as ``LeakGuard`` does; one among the
                ``callbacks`` takes its place. ``False`` for a ``data_collator`` that lays each document into a row of
                its own. What TRL pads is not probed, for it is not packed.
            **kwargs: as ``PackedRows`` and ``SFTTrainer``.

        Raises:
            TrainError: rows of hermetic's came without ``args`` or with ``packing=True``; TRL was asked to pack without
                boundaries, or to pad rows that are packed; or as ``PackedRows``. While training: ``LeakError`` for
                documents that reach each other, or as ``LeakGuard``.
        """
        if isinstance(train_dataset, PackedDataset | RowDataset):
            self._take_rows(args, train_dataset, eval_dataset, data_collator, kwargs)
        else:
            _check_packing(kwargs.get("args"))
            super().__init__(
                *args, train_dataset=train_dataset, eval_dataset=eval_dataset, data_collator=data_collator, **kwargs
            )
            if data_collator is None and not self.padding_free:
                _check_unpacked(self.train_dataset)
                probe_first_batch = False
        guarded = any(isinstance(callback, LeakGuard) for callback in self.callback_handler.callbacks)
        if probe_first_batch and not guarded:
            self.add_callback(LeakGuard())

    def _take_rows(
        self, args: tuple[Any, ...], train_dataset: Any, eval_dataset: Any, data_collator: Any, kwargs: dict[str, Any]
    ) -> None:
        """Make the Trainer without a look of TRL's at the rows."""
        kwargs["args"] = _unprepared(kwargs.get("args"))
        stand_in = _stand_in()
        super().__init__(
            *args,
            train_dataset=stand_in,
            eval_dataset=None if eval_dataset is None else stand_in,
            data_collator=data_collator or PackedCollator(),
            **kwargs,
        )
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset


def _check_packing(config: Any) -> None:
    """Refuse the packing of TRL's that forgets where documents start."""
    if getattr(config, "packing", False) and config.packing_strategy == "wrapped":
        raise TrainError(
            "packing_strategy is 'wrapped', which cuts rows out of one long text and forgets where documents start, so "
            "that a row is taken for one document; expected 'bfd' or 'bfd_split'"
        )


def _check_unpacked(dataset: Any) -> None:
    """Refuse packed rows where TRL pads, for it does not look at where their documents start."""
    if "seq_lengths" in (getattr(dataset, "column_names", None) or ()):
        raise TrainError(
            "train_dataset has the column 'seq_lengths', so its rows are packed, and with packing=False and "
            "padding_free=False TRL takes each row for one document; expected padding_free=True"
        )


def _stand_in() -> Any:
    """A row that TRL, which takes data sets of one library only, may look at while it is made."""
    import datasets

    return datasets.Dataset.from_list([{"input_ids": [0, 0], "labels": [-100, -100], "seq_lengths": [2]}])


def _unprepared(config: Any) -> Any:
    """The configuration with which TRL leaves a data set alone."""
    if config is None or config.packing:
        raise TrainError(
            f"args is {None if config is None else 'an SFTConfig with packing=True'}, expected an SFTConfig with "
            "packing=False: the rows are packed already"
        )
    config.dataset_kwargs = {**(config.dataset_kwargs or {}), "skip_prepare_dataset": True}
    return config


class PreferenceCollator(PackedCollator):
    """Rows of preference pairs to the inputs of a sealed model, and ``roles``, ``[D]`` int64, beside them."""

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """``batch.model_inputs()`` of all documents, and their roles.

        Raises:
            TrainError: a row does not say which documents are chosen and rejected, or not of each.
        """
        without = next((row for row in items if not isinstance(row, Mapping) or "roles" not in row), None)
        if without is not None:
            raise TrainError(
                "a row has no 'roles', expected rows of preference pairs: open them with "
                "PackedDataset(folder, columns=PREFERENCE_COLUMNS)"
            )
        rows = [{name: value for name, value in row.items() if name != "roles"} for row in items]
        batch = collate_rows(rows, pad_to_multiple=self.pad_to_multiple, pad_token_id=self.pad_token_id)
        roles = np.concatenate([_roles_of(row) for row in items])
        tail = [NEITHER] * (batch.num_slots > batch.boundaries.num_tokens)
        return {**batch.model_inputs(), "roles": torch.tensor([*roles.tolist(), *tail])}


def _roles_of(row: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Those of the documents that a model sees: an empty one has no edge."""
    roles = int64_array(row["roles"], name="roles", ndims=(1,), error=TrainError)
    lengths = np.asarray(row["seq_lengths"])
    if roles.shape != lengths.shape:
        raise TrainError(
            f"a row has {len(roles)} roles and {len(lengths)} documents, expected one role for each document"
        )
    return roles[lengths > 0]


class PackedDPOTrainer(PackedRows, Trainer):
    """Direct preference optimization of a sealed model on packed pairs.

    ``PackedDPOTrainer(model=sealed, ref_model=sealed_too, args=DPOConfig(...), train_dataset=pairs)``, where ``pairs``
    is ``PackedDataset(folder, columns=PREFERENCE_COLUMNS)`` over what ``hermetic pack`` made of preference records.
    Dropout is off in both models, as in TRL, unless a ``DPOConfig`` has ``disable_dropout=False``: else the margin of a
    pair would be noise at the start.
    """

    def __init__(
        self,
        *args: Any,
        ref_model: Any = None,
        beta: float | None = None,
        data_collator: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make a Trainer.

        Args:
            *args: as ``transformers.Trainer``; ``args`` may be TRL's ``DPOConfig``.
            ref_model: the frozen reference, sealed. By default the model without its PEFT adapter.
            beta: as in ``dpo_loss``; by default that of a ``DPOConfig``, or else 0.1.
            data_collator: ``PreferenceCollator()`` by default.
            **kwargs: as ``PackedRows`` and ``transformers.Trainer``.

        Raises:
            TrainError: the reference is missing, one of the models is not sealed, or a ``DPOConfig`` asks for another
                loss; or as ``PackedRows``.
        """
        super().__init__(*args, data_collator=data_collator or PreferenceCollator(), **kwargs)
        _check_config(self.args)
        for name, model in (("model", self.model), ("ref_model", ref_model)):
            if model is not None and not is_sealed(model):
                raise TrainError(
                    f"{name} is not sealed, so documents of a row would reach each other in it; expected "
                    f"hermetic.seal({name})"
                )
        if ref_model is None and not hasattr(self.model, "disable_adapter"):
            raise TrainError(
                "there is no ref_model and the model has no PEFT adapter to switch off; expected a sealed copy of the "
                "model as it was before training"
            )
        if getattr(self.args, "disable_dropout", True):
            for model in (self.model, ref_model):
                _without_dropout(model)
        self.ref_model = None if ref_model is None else self._frozen(ref_model)
        self.beta = getattr(self.args, "beta", 0.1) if beta is None else beta
        self.model_accepts_loss_kwargs = False  # the loss is not the model's
        self.loss_is_scaled_for_ga = True  # it is divided by the pairs of the whole step

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of a step, and its number of pairs on all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batches, self.over_ranks(sum(len(pairs_from_roles(inputs["roles"].cpu())) for inputs in batches))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - transformers' signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The mean over pairs: of the whole step in training, of this batch alone in an evaluation."""
        batch = batch_from_inputs(inputs)
        pairs = pairs_from_roles(inputs["roles"].cpu())
        called = {name: value for name, value in inputs.items() if name not in ("labels", "roles")}
        outputs = model(**called)
        training = self._evaluated is None and num_items_in_batch is not None
        weight = float(num_items_in_batch) if training else float(len(pairs))
        loss = no_loss(outputs.logits)
        if len(pairs):
            log_probs = document_log_probs(logits_of_batch(outputs.logits), batch)
            loss = dpo_loss(log_probs, self._reference(called, batch), pairs, **self._kind(batch), denominator=weight)
        self.note(loss, weight)
        if training and self.args.average_tokens_across_devices:
            loss = loss * self.num_data_ranks
        return (loss, outputs) if return_outputs else loss

    def _frozen(self, ref_model: Any) -> Any:
        ref_model.requires_grad_(requires_grad=False)
        return self.accelerator.prepare_model(ref_model.eval(), evaluation_mode=True)

    def _kind(self, batch: Any) -> dict[str, Any]:
        kind = _loss_types(self.args)[0]
        options = {"beta": self.beta, "kind": kind}
        return {**options, "token_counts": supervised_tokens(batch)} if kind == "ipo" else options

    @torch.no_grad()
    def _reference(self, called: dict[str, Any], batch: Any) -> torch.Tensor:
        model: Any = self.ref_model or self.accelerator.unwrap_model(self.model)
        with contextlib.nullcontext() if self.ref_model is not None else model.disable_adapter():
            logits = model(**called).logits
        return document_log_probs(logits_of_batch(logits), batch)


def _without_dropout(model: Any) -> None:
    for module in () if model is None else model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def _loss_types(config: Any) -> list[str]:
    found = getattr(config, "loss_type", "sigmoid")
    return [found] if isinstance(found, str) else list(found)


def _check_config(config: Any) -> None:
    """Refuse what a DPOConfig may ask for and is not done here."""
    kinds = _loss_types(config)
    asked = {
        "loss_type": len(kinds) != 1 or kinds[0] not in ("sigmoid", "hinge", "ipo"),
        "ld_alpha": getattr(config, "ld_alpha", None) is not None,
        "use_weighting": getattr(config, "use_weighting", False),
        "f_divergence_type": getattr(config, "f_divergence_type", "reverse_kl") != "reverse_kl",
        "label_smoothing": bool(getattr(config, "label_smoothing", 0.0)),
        "precompute_ref_log_probs": getattr(config, "precompute_ref_log_probs", False),
        "sync_ref_model": getattr(config, "sync_ref_model", False),
        "loss_weights": list(getattr(config, "loss_weights", None) or [1.0]) != [1.0],
        "router_aux_loss_coef": bool(getattr(config, "router_aux_loss_coef", None)),
        "activation_offloading": getattr(config, "activation_offloading", False),
        "label_smoothing_factor": bool(config.label_smoothing_factor),
    }
    wrong = next((name for name, is_asked in asked.items() if is_asked), None)
    if wrong is not None:
        raise TrainError(
            f"{wrong} is {getattr(config, wrong)!r}, which packed preference training does not do; expected the "
            "default with loss_type 'sigmoid', 'hinge' or 'ipo'. TRL's own DPOTrainer, which pads, does"
        )

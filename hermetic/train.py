"""Fine-tune on packed rows with transformers' Trainer: sealed, probed on the first batch, honestly counted.

Algorithm: a source file is packed (or a packed folder opened), the model is sealed, and ``SealedTrainer``
trains it with a token-level loss over each whole optimizer step. ``pack=False`` trains the same rows of
documents padded instead: the same documents in the same steps, one to a row.
Guarantee: the folder is written whole, after training, or not at all; nothing is trained on a leak.
Price: what the Trainer costs; the probe and the seal take seconds.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hermetic.data import PackedData, load_tokenizer, open_packed, pack_file, tokenizer_fingerprint
from hermetic.data.dependencies import import_optional
from hermetic.data.folders import check_free, new_folder
from hermetic.errors import TrainError
from hermetic.seal import seal

if TYPE_CHECKING:
    from hermetic.probe import LeakReport

METRICS_NAME = "hermetic_metrics.json"
REPORT_NAME = "leak_report.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """How to train; the defaults suit full fine-tuning of a pretrained model."""

    epochs: float = 1.0
    max_steps: int | None = None
    """Stop after so many optimizer steps, whatever ``epochs`` says."""
    rows_per_batch: int = 1
    """Rows per device and micro-batch."""
    accumulation_steps: int = 1
    """Micro-batches per optimizer step."""
    learning_rate: float = 2e-5
    lora: bool = False
    """Train low-rank adapters on all linear layers instead of the weights."""
    gradient_checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        positive = {"epochs": self.epochs, "learning_rate": self.learning_rate}
        counts = {"rows_per_batch": self.rows_per_batch, "accumulation_steps": self.accumulation_steps}
        if self.max_steps is not None:
            counts["max_steps"] = self.max_steps
        for name, value in (positive | counts).items():
            if not value > 0:
                raise TrainError(f"{name} is {value}; expected more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainMetrics:
    """What a training run did."""

    packed: bool
    rows: int
    documents: int
    tokens: int
    """Real tokens of one epoch."""
    supervised_tokens: int
    utilization: float
    """Real tokens per slot of the rows that were run: of the capacity when packed, of the padded rows else."""
    steps: int
    losses: tuple[float, ...]
    """Token-level loss of each optimizer step, in nats."""
    train_loss: float
    """Mean of the last tenth of the steps."""
    seconds: float
    tokens_per_second: float
    """Real tokens trained on, per second of training."""
    verdict: str | None
    """The probe's verdict on the first batch; ``None`` for padded rows, which have no neighbours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """Losses and time of a Trainer run."""

    losses: tuple[float, ...]
    seconds: float
    epochs: float
    report: "LeakReport | None"


def train(
    *,
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    capacity: int,
    settings: TrainSettings | None = None,
    pack: bool = True,
    backend: str = "sdpa",
    on_overflow: str = "error",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> TrainMetrics:
    """Fine-tune a causal language model and write it with its metrics and leak report.

    Args:
        model: folder or hub id of a model with its tokenizer.
        data: a file that ``hermetic pack`` reads, or a folder that it made.
        out: new folder for the model (``from_pretrained`` loads it), ``hermetic_metrics.json`` and, when
            packed, ``leak_report.json``.
        capacity: tokens per row.
        settings: how to train.
        pack: ``False`` trains the padded baseline: the same documents in the same steps, one to a row.
        backend: attention backend of the seal.
        on_overflow: what to do with documents longer than ``capacity``, when ``data`` is a file.
        trust_remote_code: whether model and tokenizer may bring code of their own and run it.
        quiet: no progress bar.

    Raises:
        TrainError: model, tokenizer and data do not fit each other.
        SealError: the model cannot be sealed.
        LeakError: the probe's verdict on the first batch is not ``sealed``.
    """
    settings = settings or TrainSettings()
    target = Path(out)
    check_free(target)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    with new_folder(target) as folder:
        packed = _packed_data(
            data,
            tokenizer,
            capacity=capacity,
            folder=folder,
            pack_options={
                "tokenizer": model,
                "on_overflow": on_overflow,
                "trust_remote_code": trust_remote_code,
            },
        )
        network = load_model(model, trust_remote_code=trust_remote_code)
        _check_vocabulary(network, packed)
        if settings.lora:
            network = add_lora(network)
        if pack:
            seal(network, backend=backend)
        result = fit(network, packed, settings, pack=pack, pad_token_id=tokenizer.pad_token_id or 0, quiet=quiet)
        metrics = metrics_of(result, packed, pack=pack, settings=settings)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / METRICS_NAME).write_text(json.dumps(asdict(metrics), indent=1), encoding="utf-8")
        if result.report is not None:
            (folder / REPORT_NAME).write_text(result.report.to_json(), encoding="utf-8")
    return metrics


def _packed_data(
    data: str | os.PathLike[str], tokenizer: Any, *, capacity: int, folder: Path, pack_options: dict[str, Any]
) -> PackedData:
    """Open a packed folder, or pack a file into ``folder``."""
    if not Path(data).is_dir():
        pack_file(data, folder / "packed", capacity=capacity, **pack_options)
        return open_packed(folder / "packed")
    packed = open_packed(data)
    if packed.manifest.capacity != capacity:
        raise TrainError(
            f"{data} was packed for rows of {packed.manifest.capacity} tokens and --capacity is {capacity}; "
            "expected the same. Pass its capacity, or pack the source again"
        )
    if packed.manifest.tokenizer_fingerprint != tokenizer_fingerprint(tokenizer):
        raise TrainError(
            f"{data} was tokenized with another tokenizer than that of the model; its token ids mean something else. "
            "Pack the source again with this model's tokenizer"
        )
    return packed


def load_model(model: str | os.PathLike[str], *, trust_remote_code: bool = False, attention: str | None = None) -> Any:
    """Load a causal language model from a folder or the hub.

    Args:
        model: folder or hub id.
        trust_remote_code: whether the model may bring code of its own and run it.
        attention: the attention implementation, as transformers names it; by default the model's own choice.

    Raises:
        TrainError: there is no such model.
    """
    transformers = import_optional("transformers")
    options = {} if attention is None else {"attn_implementation": attention}
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            os.fspath(model), trust_remote_code=trust_remote_code, **options
        )
    except (OSError, ValueError) as error:
        raise TrainError(
            f"{model} cannot be loaded as a causal language model ({error}); expected a folder with a config and "
            "weights, or a hub id"
        ) from error


def _check_vocabulary(network: Any, packed: PackedData) -> None:
    size = network.get_input_embeddings().num_embeddings
    largest = max(int(document["input_ids"].max()) for row in packed.rows() for document in row)
    if largest >= size:
        raise TrainError(
            f"{packed.path} holds the token id {largest} and the model embeds {size} tokens; expected ids below that. "
            "Pack the source with this model's tokenizer"
        )


def add_lora(network: nn.Module) -> nn.Module:
    """Wrap a model with trainable low-rank adapters on all of its linear layers but the output."""
    peft = import_optional("peft")
    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: nn.Module = peft.get_peft_model(network, config)
    return adapted


def fit(
    network: nn.Module,
    packed: PackedData,
    settings: TrainSettings,
    *,
    pack: bool = True,
    pad_token_id: int = 0,
    quiet: bool = False,
    collator: Any = None,
) -> FitResult:
    """Run the Trainer over the rows of ``packed``; ``collator`` replaces the packed or padded one."""
    trainer = make_trainer(
        network, packed, settings, pack=pack, pad_token_id=pad_token_id, quiet=quiet, collator=collator
    )
    start = time.perf_counter()
    outcome = trainer.train()
    seconds = time.perf_counter() - start
    losses = tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    epochs = float(outcome.metrics.get("epoch", settings.epochs))
    return FitResult(losses=losses, seconds=seconds, epochs=epochs, report=trainer.leak_report)


def make_trainer(
    network: nn.Module,
    packed: PackedData,
    settings: TrainSettings,
    *,
    pack: bool = True,
    pad_token_id: int = 0,
    quiet: bool = False,
    collator: Any = None,
) -> Any:
    """The Trainer that ``fit`` runs, before it runs."""
    transformers = import_optional("transformers")
    import_optional("accelerate")
    from hermetic.integrations.transformers import (
        PackedCollator,
        PaddedCollator,
        RowDataset,
        SealedTrainer,
        SilentProgress,
    )

    if collator is None:
        collator = PackedCollator() if pack else PaddedCollator(pad_token_id=pad_token_id)
    trainer = SealedTrainer(
        model=network,
        args=_training_arguments(settings, quiet=quiet),
        train_dataset=RowDataset(packed),
        data_collator=collator,
    )
    trainer.remove_callback(transformers.PrinterCallback)  # losses are in the metrics
    if not quiet:
        trainer.remove_callback(transformers.ProgressCallback)
        trainer.add_callback(SilentProgress)
    return trainer


def _training_arguments(settings: TrainSettings, *, quiet: bool) -> Any:
    transformers = import_optional("transformers")
    # newer releases call it activation checkpointing and warn about the old name
    fields = transformers.TrainingArguments.__dataclass_fields__
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
    return transformers.TrainingArguments(
        num_train_epochs=settings.epochs,
        max_steps=-1 if settings.max_steps is None else settings.max_steps,
        per_device_train_batch_size=settings.rows_per_batch,
        gradient_accumulation_steps=settings.accumulation_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=0.03,
        lr_scheduler_type="cosine",
        **{checkpointing: settings.gradient_checkpointing},
        seed=settings.seed,
        data_seed=settings.seed,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=quiet,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def metrics_of(result: FitResult, packed: PackedData, *, pack: bool, settings: TrainSettings) -> TrainMetrics:
    """Count what a run did."""
    manifest = packed.manifest
    last = result.losses[-max(1, len(result.losses) // 10) :]
    return TrainMetrics(
        packed=pack,
        rows=len(packed),
        documents=len(packed.document_lengths),
        tokens=manifest.tokens_placed,
        supervised_tokens=manifest.supervised_tokens,
        utilization=manifest.utilization if pack else padded_utilization(packed, settings.rows_per_batch),
        steps=len(result.losses),
        losses=result.losses,
        train_loss=sum(last) / len(last),
        seconds=result.seconds,
        tokens_per_second=manifest.tokens_placed * result.epochs / result.seconds,
        verdict=None if result.report is None else result.report.verdict,
    )


def padded_utilization(packed: PackedData, rows_per_batch: int) -> float:
    """Real tokens per slot when each batch of rows is padded to its longest document instead."""
    documents = 0
    slots = 0
    counts = packed.documents_per_row
    for first in range(0, len(counts), rows_per_batch):
        count = int(counts[first : first + rows_per_batch].sum())
        slots += count * int(packed.document_lengths[documents : documents + count].max())
        documents += count
    return float(packed.document_lengths.sum()) / slots

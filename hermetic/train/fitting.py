"""The Trainer's part of a run: how it is made, run and asked for losses."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hermetic.data import PackedData
from hermetic.data.dependencies import import_optional
from hermetic.train.records import FitResult, TrainSettings


def fit(
    network: nn.Module,
    packed: PackedData,
    settings: TrainSettings,
    *,
    pack: bool = True,
    pad_token_id: int = 0,
    collator: Any = None,
    on_stage: Callable[[str], None] | None = None,
) -> FitResult:
    """Run the Trainer over the rows of ``packed``; ``collator`` replaces the packed or padded one."""
    with _cache_setting_kept(network):
        trainer = make_trainer(
            network, packed, settings, pack=pack, pad_token_id=pad_token_id, collator=collator, on_stage=on_stage
        )
        start = time.perf_counter()
        outcome = trainer.train()
        seconds = time.perf_counter() - start
    losses = tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    epochs = float(outcome.metrics.get("epoch", settings.epochs))
    return FitResult(losses=losses, seconds=seconds, epochs=epochs, report=trainer.leak_report)


@contextmanager
def _cache_setting_kept(network: Any) -> Iterator[None]:
    """The Trainer turns the cache off in the configuration for good; a trained model generates with it again."""
    config = network.config
    before = vars(config).get("use_cache")
    try:
        yield
    finally:
        if before is None:
            vars(config).pop("use_cache", None)
        else:
            config.use_cache = before


def make_trainer(
    network: nn.Module,
    packed: PackedData,
    settings: TrainSettings,
    *,
    pack: bool = True,
    pad_token_id: int = 0,
    collator: Any = None,
    on_stage: Callable[[str], None] | None = None,
) -> Any:
    """The Trainer that ``fit`` runs, before it runs; ``pack`` says whether rows hold several documents."""
    transformers = import_optional("transformers")
    import_optional("accelerate")
    from hermetic.integrations.transformers import (
        PackedCollator,
        PaddedCollator,
        RowDataset,
        SealedTrainer,
        StepMessages,
    )

    if collator is None:
        collator = PackedCollator() if pack else PaddedCollator(pad_token_id=pad_token_id)
    trainer = SealedTrainer(
        model=network,
        args=_training_arguments(settings),
        train_dataset=RowDataset(packed),
        data_collator=collator,
        callbacks=[] if on_stage is None else [StepMessages(on_stage)],
        probe_first_batch=pack,
    )
    trainer.remove_callback(transformers.PrinterCallback)  # losses are in the metrics
    return trainer


def _training_arguments(settings: TrainSettings) -> Any:
    transformers = import_optional("transformers")
    # newer releases call it activation checkpointing and warn about the old name
    fields = transformers.TrainingArguments.__dataclass_fields__
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
    return transformers.TrainingArguments(
        # The Trainer makes this folder if it is missing, and writes nothing to it when it saves nothing.
        output_dir=tempfile.gettempdir(),
        num_train_epochs=settings.epochs,
        max_steps=-1 if settings.max_steps is None else settings.max_steps,
        per_device_train_batch_size=settings.rows_per_batch,
        gradient_accumulation_steps=settings.accumulation_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=0.03,
        lr_scheduler_type="cosine",
        **{checkpointing: settings.gradient_checkpointing},
        bf16=settings.bf16,
        seed=settings.seed,
        data_seed=settings.seed,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        # without it, several processes on CPUs would each train alone and not know of the others
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )

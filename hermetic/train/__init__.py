"""Floor 6: fine-tuning on packed rows with transformers' Trainer, and its padded baseline."""

from hermetic.train.fitting import fit, make_trainer
from hermetic.train.records import FitResult, TrainMetrics, TrainSettings, metrics_of, padded_utilization
from hermetic.train.run import (
    METRICS_NAME,
    REPORT_NAME,
    add_lora,
    check_vocabulary,
    check_weights,
    is_first_process,
    load_model,
    packed_data,
    train,
)

__all__ = [
    "METRICS_NAME",
    "REPORT_NAME",
    "FitResult",
    "TrainMetrics",
    "TrainSettings",
    "add_lora",
    "check_vocabulary",
    "check_weights",
    "fit",
    "is_first_process",
    "load_model",
    "make_trainer",
    "metrics_of",
    "packed_data",
    "padded_utilization",
    "train",
]

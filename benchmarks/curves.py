"""Training curves of four stacks, sealed and packed, against the padded curve.

    python benchmarks/curves.py
    python benchmarks/curves.py --steps 40 --stack trainer

A tiny Llama in float32 takes SGD steps on the same documents in the same order: in a plain loop padded (the curve to
lie on), in the same loop padded into rows of other widths (the bar: how far a change of shapes alone moves a curve),
and packed and sealed in a plain loop, transformers' Trainer, TRL's SFTTrainer and Lightning. Printed is the largest
difference of a step's loss from the padded curve. The last line is JSON.
"""

import argparse
import copy
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import lightning.pytorch as pl
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from trl import SFTConfig

import hermetic
import hermetic.demo
from hermetic.data import load_tokenizer
from hermetic.integrations.lightning import PackedDataModule, packed_step_loss
from hermetic.integrations.rows import PackedCollator, collate_rows
from hermetic.integrations.transformers import SealedTrainer
from hermetic.integrations.trl import PackedSFTTrainer
from hermetic.loss import loss_denominator, packed_loss

Row = list[dict[str, Any]]
RATE = 0.1
WIDTHS = (8, 32, 64)
ROWS_PER_STEP = 2
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def rows_of(steps: int, vocabulary: int) -> list[Row]:
    """Rows of one to five documents with a structure that can be learned: each token follows from the last."""
    random = np.random.default_rng(0)
    follows = random.integers(8, vocabulary, vocabulary)

    def document() -> dict[str, Any]:
        ids = [int(random.integers(8, vocabulary))]
        for _ in range(int(random.integers(3, 20))):
            ids.append(int(follows[ids[-1]]) if random.random() < 0.8 else int(random.integers(8, vocabulary)))
        return {"input_ids": ids, "labels": [-100, *ids[1:]]}

    return [[document() for _ in range(int(random.integers(1, 6)))] for _ in range(steps * ROWS_PER_STEP)]


def steps_of(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """The rows of each optimizer step."""
    return [rows[start : start + ROWS_PER_STEP] for start in range(0, len(rows), ROWS_PER_STEP)]


def padded(model: Any, rows: Sequence[Row], *, width: int) -> list[float]:
    """A plain loop over single documents in rows that are padded to a multiple of ``width``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in steps_of(rows):
        documents = [document for row in step for document in row]
        longest = -(-max(len(document["input_ids"]) for document in documents) // width) * width
        ids, labels = (torch.full((len(documents), longest), fill) for fill in (0, -100))
        for number, document in enumerate(documents):
            length = len(document["input_ids"])
            ids[number, :length] = torch.tensor(document["input_ids"])
            labels[number, :length] = torch.tensor(document["labels"])
        mask = (torch.arange(longest) < torch.tensor([[len(d["input_ids"])] for d in documents])).long()
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def plain_loop(model: Any, rows: Sequence[Row], _: Path) -> list[float]:
    """A plain loop over packed micro-batches of one row each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in steps_of(rows):
        batches = [collate_rows([row]) for row in step]
        weight, total = loss_denominator(batches), 0.0
        for batch in batches:
            loss = packed_loss(model(**batch.model_inputs()).logits, batch, denominator=weight)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def _arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": ROWS_PER_STEP,
        "num_train_epochs": 1,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }


def _logged(trainer: Any) -> list[float]:
    trainer.pop_callback(_printer())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def trainer(model: Any, rows: Sequence[Row], folder: Path) -> list[float]:
    """The Trainer of transformers."""
    arguments = TrainingArguments(**_arguments(folder))
    return _logged(SealedTrainer(model=model, args=arguments, train_dataset=rows, data_collator=PackedCollator()))


def trl(model: Any, rows: Sequence[Row], folder: Path) -> list[float]:
    """TRL's SFTTrainer on packed rows as TRL stores them."""
    columns = [
        {name: [token for document in row for token in document[name]] for name in ("input_ids", "labels")}
        | {"seq_lengths": [len(document["input_ids"]) for document in row]}
        for row in rows
    ]
    extra = {"padding_free": True, "max_length": None, "bf16": False, "gradient_checkpointing": False}
    arguments = SFTConfig(**_arguments(folder), **extra, dataset_kwargs={"skip_prepare_dataset": True})
    made = PackedSFTTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_list(columns),
        processing_class=load_tokenizer(Path(hermetic.demo.__file__).parent / "tokenizer"),
    )
    return _logged(made)


class _Module(pl.LightningModule):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        loss = packed_step_loss(self.model, batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def lightning(model: Any, rows: Sequence[Row], folder: Path) -> list[float]:
    """Lightning's Trainer."""
    module = _Module(model)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    made = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=ROWS_PER_STEP,
        default_root_dir=folder,
        **quiet,
    )
    made.fit(module, datamodule=PackedDataModule(rows, rows_per_batch=1, seed=None))
    return np.array(module.losses).reshape(-1, ROWS_PER_STEP).mean(axis=1).tolist()


STACKS: dict[str, Callable[[Any, Sequence[Row], Path], list[float]]] = {
    "plain loop": plain_loop,
    "trainer": trainer,
    "trl": trl,
    "lightning": lightning,
}


def measure(steps: int, stacks: Sequence[str]) -> dict[str, float]:
    """How far the padded loss fell, and the largest difference from its curve: the bar, and each stack's."""
    rows = rows_of(steps, 64)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=64, **SIZES)).train()
    expected = padded(copy.deepcopy(model), rows, width=1)
    others = [padded(copy.deepcopy(model), rows, width=width) for width in WIDTHS]
    bar = max(_largest_difference(curve, expected) for curve in others)
    found = {"learned": expected[0] - expected[-1], "bar": bar}
    for name in stacks:
        with tempfile.TemporaryDirectory() as folder:
            curve = STACKS[name](hermetic.seal(copy.deepcopy(model)), rows, Path(folder))
        found[name] = _largest_difference(curve, expected)
    return found


def _largest_difference(curve: Sequence[float], other: Sequence[float]) -> float:
    if len(curve) != len(other):
        raise SystemExit(f"a curve has {len(curve)} steps and the padded one {len(other)}")
    return float(np.abs(np.subtract(curve, other)).max())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--stack", action="append", choices=list(STACKS), help="one of the stacks; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = measure(options.steps, options.stack or list(STACKS))
    print(f"{options.steps} steps; largest difference of a step's loss from the padded curve, in nats")
    for name, difference in found.items():
        print(f"{name:<12}{difference:>12.2e}")
    print(json.dumps({"benchmark": "curves", "steps": options.steps, "largest_difference": found}))


if __name__ == "__main__":
    main()

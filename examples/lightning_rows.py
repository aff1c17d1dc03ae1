"""Lightning over packed rows: a data module, the loss of the whole step, and a probe before the first.

``python examples/lightning_rows.py``
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic
import hermetic.demo
from hermetic.data import PackedDataset, load_tokenizer, pack_sources
from hermetic.demo.conversations import write_conversations
from hermetic.integrations.lightning import LeakGuard, PackedDataModule, packed_batch_loss, packed_step_loss

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"


class Tuner(LightningModule):
    """A language model in training."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        """Divided by what the whole step weighs."""
        return packed_step_loss(self.model, batch)

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        """Logged with its weight, so that the mean is that of all tokens."""
        loss, weight = packed_batch_loss(self.model, batch)
        self.log("val_loss", loss, batch_size=weight, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(folder: Path) -> None:
    """Pack 100 conversations into rows of 512 tokens and take one pass over them."""
    write_conversations(folder / "chats.jsonl", count=100, seed=0)
    pack_sources(folder / "chats.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=512)
    rows = PackedDataset(folder / "rows")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=len(load_tokenizer(TOKENIZER)), **sizes)))
    guard = LeakGuard()
    trainer = Trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[guard], logger=False, default_root_dir=folder)
    trainer.fit(Tuner(model), datamodule=PackedDataModule(rows, rows_per_batch=1, evaluation=rows))
    print(f"{trainer.global_step} steps, val_loss {float(trainer.callback_metrics['val_loss']):.2f}")
    print(f"probe: {guard.reports[0].verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))

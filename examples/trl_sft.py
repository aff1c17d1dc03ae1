"""TRL's SFTTrainer on rows that `hermetic pack` made, with a sealed model.

    python examples/trl_sft.py

A data set that TRL packs itself (``SFTConfig(packing=True)``) goes in the same way.
"""

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback
from trl import SFTConfig

import hermetic
import hermetic.demo
from hermetic.data import PackedDataset, load_tokenizer, pack_sources
from hermetic.demo.conversations import write_conversations
from hermetic.integrations.transformers import LeakGuard
from hermetic.integrations.trl import PackedSFTTrainer

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"


def main(folder: Path) -> None:
    """Pack 100 conversations into rows of 512 tokens and take one pass over them."""
    write_conversations(folder / "chats.jsonl", count=100, seed=0)
    pack_sources(folder / "chats.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=512)
    rows, tokenizer = PackedDataset(folder / "rows"), load_tokenizer(TOKENIZER)

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)))

    guard = LeakGuard()  # probes the first batch before the first step
    trainer = PackedSFTTrainer(
        model=model,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        callbacks=[guard],
        args=SFTConfig(
            output_dir=str(folder / "trained"),
            per_device_train_batch_size=1,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
        ),
    )
    trainer.remove_callback(PrinterCallback)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    print(f"{len(rows)} rows, loss {before:.2f} -> {trainer.evaluate()['eval_loss']:.2f}")
    print(f"probe: {guard.reports[0].verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))

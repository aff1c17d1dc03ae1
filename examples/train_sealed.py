"""Train a tiny Llama on packed conversations: pack, seal, prove, train.

    python examples/train_sealed.py

Takes a few seconds on a CPU. Everything between the model and the Trainer is what your own script needs.
"""

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainingArguments

import hermetic
import hermetic.demo
from hermetic.data import load_tokenizer, open_packed, pack_sources
from hermetic.demo.conversations import write_conversations
from hermetic.integrations.transformers import PackedCollator, RowDataset, SealedTrainer

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"


def main(folder: Path) -> None:
    """Pack 200 conversations into rows of 512 tokens and take one pass over them."""
    write_conversations(folder / "chats.jsonl", count=200, seed=0)
    manifest = pack_sources(folder / "chats.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=512)
    print(f"{manifest.documents_placed} documents in {manifest.rows} rows, utilization {manifest.utilization:.1%}")

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = len(load_tokenizer(TOKENIZER))
    config = LlamaConfig(vocab_size=vocabulary, bos_token_id=None, eos_token_id=None, **sizes)
    model = hermetic.seal(LlamaForCausalLM(config))

    trainer = SealedTrainer(  # probes the first batch before the first step, and does not start on a leak
        model=model,
        train_dataset=RowDataset(open_packed(folder / "rows")),
        data_collator=PackedCollator(),
        args=TrainingArguments(
            output_dir=str(folder / "trained"),
            per_device_train_batch_size=1,
            learning_rate=3e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            num_train_epochs=1,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,  # rows are lists of documents, not columns
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"{len(losses)} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}, probe: {trainer.leak_report.verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))

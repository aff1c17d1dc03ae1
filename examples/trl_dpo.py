"""Direct preference optimization on packed pairs, as TRL's DPOTrainer computes it on padded ones.

``python examples/trl_dpo.py``
"""

import copy
import json
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback
from trl import DPOConfig

import hermetic
import hermetic.demo
from hermetic.data import PackedDataset, load_tokenizer, pack_sources
from hermetic.integrations.trl import PREFERENCE_COLUMNS, PackedDPOTrainer

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"


def main(folder: Path) -> None:
    """Pack 60 pairs, right sums before wrong ones, and take one pass over them."""
    with (folder / "pairs.jsonl").open("w") as file:
        for n in range(60):
            pair = {"prompt": f"What is {n} plus 3?", "chosen": f" {n + 3}", "rejected": f" I would say {n + 4}"}
            file.write(json.dumps(pair) + "\n")
    pack_sources(folder / "pairs.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=256)
    pairs = PackedDataset(folder / "rows", columns=PREFERENCE_COLUMNS)

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(load_tokenizer(TOKENIZER)), **sizes))

    trainer = PackedDPOTrainer(
        model=hermetic.seal(model),
        ref_model=hermetic.seal(copy.deepcopy(model)),
        train_dataset=pairs,
        args=DPOConfig(
            output_dir=str(folder / "trained"),
            beta=0.1,
            per_device_train_batch_size=1,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=2,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"60 pairs in {len(pairs)} rows, loss {losses[0]:.3f} -> {losses[-1]:.3f}, falling: {losses[-1] < losses[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))

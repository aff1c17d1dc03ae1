"""TRL's SFTTrainer lays texts end to end and cuts them into rows, for a Llama.

    hermetic doctor -- python examples/doctor/trl_wrapped.py

Nothing says where a text starts, so each sees those before it in its row, and nothing can keep them apart.
"""

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = ("the", "cat", "sat", "on", "a", "mat", "while", "dog", "ran", "to", "its", "red", "house", "and", "then")
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL.values(), *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)


def texts() -> Dataset:
    """Sixty texts of five to twenty words."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 20, (60,), generator=generator).tolist()
    picks = [torch.randint(len(WORDS), (length,), generator=generator).tolist() for length in lengths]
    return Dataset.from_list([{"text": " ".join(WORDS[i] for i in pick)} for pick in picks])


def main(out: Path) -> None:
    """Train for six steps, with a checkpoint after each."""
    torch.manual_seed(0)
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        processing_class=words,
        train_dataset=texts(),
        args=SFTConfig(
            output_dir=str(out),
            packing=True,
            packing_strategy="wrapped",
            max_length=64,
            per_device_train_batch_size=4,
            max_steps=6,
            save_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/trl_wrapped"))
    main(parser.parse_args().out)

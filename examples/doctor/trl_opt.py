"""TRL's SFTTrainer packs texts for an OPT.

    hermetic doctor -- python examples/doctor/trl_opt.py

The same call as for a Llama, and a leak: OPT does not hand positions to its mask, so documents see each other.
"""

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast
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
    config = OPTConfig(
        vocab_size=len(words),
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    trainer = SFTTrainer(
        model=OPTForCausalLM(config),
        processing_class=words,
        train_dataset=texts(),
        args=SFTConfig(
            output_dir=str(out),
            packing=True,
            max_length=64,
            per_device_train_batch_size=2,
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
    parser.add_argument("--out", type=Path, default=Path("runs/trl_opt"))
    main(parser.parse_args().out)

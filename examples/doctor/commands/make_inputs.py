"""What the configurations in this folder train with: a tiny model with random weights, its tokenizer, and data.

    python examples/doctor/commands/make_inputs.py llama --out runs/llama

Writes ``model/``, sixty conversations as ``chats.jsonl``, and the ``dataset_info.json`` that LLaMA-Factory asks for.
The model is of any type of causal language model that transformers knows.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hermetic.atlas import build_tiny

WORDS = ("the", "cat", "sat", "on", "a", "mat", "while", "dog", "ran", "to", "its", "red", "house", "and", "then")
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} {{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
)
LLAMA_FACTORY = {
    "file_name": "chats.jsonl",
    "formatting": "sharegpt",
    "columns": {"messages": "messages"},
    "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word; the first three are those that tiny models know as padding, begin and end."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL.values(), "user", "assistant", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE, **SPECIAL)


def turns(count: int = 60) -> list[tuple[str, str]]:
    """Questions of four words and answers of five to twenty."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 20, (count,), generator=generator).tolist()
    return [(_said(4, generator), _said(length, generator)) for length in lengths]


def _said(length: int, generator: torch.Generator) -> str:
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator).tolist())


def main(model_type: str, out: Path) -> None:
    """Write model, tokenizer and data to a new folder."""
    build_tiny(model_type).save_pretrained(out / "model")
    tokenizer().save_pretrained(out / "model")
    chats = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in turns()]
    (out / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    (out / "dataset_info.json").write_text(json.dumps({"chats": LLAMA_FACTORY}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_type")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    main(arguments.model_type, arguments.out)

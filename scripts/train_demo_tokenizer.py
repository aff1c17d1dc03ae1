"""Train the demo's tokenizer: a byte-level BPE of 1,024 entries on the demo's own conversations.

    python scripts/train_demo_tokenizer.py [FOLDER]

Writes ``tokenizer.json`` and ``tokenizer_config.json`` into ``FOLDER`` (default ``hermetic/demo/tokenizer``).
The text comes from the seeded generator and byte-pair training breaks ties by order, so the same version of
``tokenizers`` writes the same bytes each time; a test trains anew and compares.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hermetic.demo.conversations import conversations

VOCABULARY = 1024
TRAINING_CONVERSATIONS = 3000
TRAINING_SEED = 0

PAD = "<|pad|>"
END = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = [PAD, END, *(f"<|{role}|>" for role in ROLES)]

# A message is its role's marker, its content and the end-of-turn token. The generation markers stand around
# what the assistant itself has to produce: the content and the end of its turn, not the marker that opens it.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "eos_token": END,
    "pad_token": PAD,
    "chat_template": CHAT_TEMPLATE,
}


def train() -> Tokenizer:
    """A byte-level BPE trained on the contents of the demo's training conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    drawn = conversations(count=TRAINING_CONVERSATIONS, seed=TRAINING_SEED)
    tokenizer.train_from_iterator((message["content"] for one in drawn for message in one["messages"]), trainer)
    return tokenizer


def write(folder: Path) -> None:
    """Train and write the two files of a tokenizer that ``AutoTokenizer.from_pretrained`` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(train().to_str(pretty=True) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write into the folder given as the first argument, or into the package."""
    default = Path(__file__).parents[1] / "hermetic" / "demo" / "tokenizer"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    write(folder)
    print(f"wrote {folder}/tokenizer.json and {folder}/tokenizer_config.json")


if __name__ == "__main__":
    main()

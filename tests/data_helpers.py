"""For the tests of hermetic.data: small sources, and the demo's tokenizer in many guises."""

import functools
import json
import shutil
from pathlib import Path

import hermetic.demo
from hermetic.data import load_tokenizer

DEMO_TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"

# As the demo's template, but without generation markers.
PLAIN_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

CHAT = {
    "messages": [
        {"role": "user", "content": "What is 2 plus 3?"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "You are welcome."},
    ]
}


def write_jsonl(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def tokenizer_folder(folder, *, json_changes=None, **config_changes):
    """A copy of the demo's tokenizer with changed entries; a change to None removes the entry."""
    shutil.copytree(DEMO_TOKENIZER, folder)
    for name, changes in (("tokenizer_config.json", config_changes), ("tokenizer.json", json_changes or {})):
        values = json.loads((folder / name).read_text()) | changes
        kept = {key: value for key, value in values.items() if value is not None or name == "tokenizer.json"}
        (folder / name).write_text(json.dumps(kept))
    return folder


@functools.cache
def demo_tokenizer():
    return load_tokenizer(DEMO_TOKENIZER)


def everything_under(folder):
    """Every path in a folder, hidden ones too: what "nothing was written" is judged by."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

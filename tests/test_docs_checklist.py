"""The checklist of the documentation: its commands run in their order and print what the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from train_helpers import model_folder

from hermetic.demo.conversations import write_conversations

PAGE = Path(__file__).parents[1] / "docs" / "checklist.md"
STEP = re.compile(r"```bash\n(?P<command>[^`\n]+)\n```\n\n```text\n(?P<expected>.*?)```", re.DOTALL)

CONFIGURATION = """\
model_name_or_path: ./model
dataset_name: chats
packing: true
packing_strategy: bfd
max_length: 512
use_cache: false
attn_implementation: flash_attention_2
"""

SCRIPT = """\
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import hermetic

tokenizer = AutoTokenizer.from_pretrained("model")
model = hermetic.seal(AutoModelForCausalLM.from_pretrained("model"))
arguments = SFTConfig(
    output_dir="out", packing=True, max_length=512, eos_token="<|end|>", max_steps=1, use_cpu=True, report_to=[],
    per_device_train_batch_size=1, save_strategy="no",
)
data = Dataset.from_json("chats.jsonl")
SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer).train()
"""


def steps():
    """Each command of the page, and the lines that it should print."""
    return [(found["command"], found["expected"].splitlines()) for found in STEP.finditer(PAGE.read_text("utf-8"))]


def missing(expected, printed):
    """The expected lines that were not printed; ``...`` stands for anything."""
    patterns = [".*".join(re.escape(part) for part in line.split("...")) for line in expected]
    return [line for line, pattern in zip(expected, patterns, strict=True) if not re.search(pattern, printed)]


def run(command, folder):
    program, *arguments = shlex.split(command)
    assert program == "hermetic"
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
    }
    own = [sys.executable, "-c", "from hermetic.cli import main; main()"]
    return subprocess.run(
        [*own, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_page_has_ten_commands_with_what_they_should_say():
    assert len(steps()) == PAGE.read_text("utf-8").count("```bash") == 10
    assert all(expected for _, expected in steps())


@pytest.mark.slow
def test_every_command_of_the_checklist_prints_what_the_page_says_and_finds_nothing(tmp_path):
    model_folder(tmp_path / "model")
    write_conversations(tmp_path / "chats.jsonl", count=60, seed=0)
    (tmp_path / "train.yaml").write_text(CONFIGURATION)
    (tmp_path / "train.py").write_text(SCRIPT)

    for command, expected in steps():
        finished = run(command, tmp_path)

        assert finished.returncode == 0, (command, finished.stdout, finished.stderr)
        assert missing(expected, finished.stdout) == [], (command, finished.stdout)


def test_a_line_that_is_not_printed_is_seen_and_dots_stand_for_anything():
    printed = "LlamaForCausalLM: sealed\nexactly 0 for all 12 pairs\n"

    assert missing(["LlamaForCausalLM: sealed", "...0 for all 12..."], printed) == []
    assert missing(["LlamaForCausalLM: leak", "...0 for...13..."], printed) == [
        "LlamaForCausalLM: leak",
        "...0 for...13...",
    ]

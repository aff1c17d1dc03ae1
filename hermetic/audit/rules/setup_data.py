"""Topics 6 and 7 of a configuration: what a stack refuses or misreads, and what becomes of documents too long."""

from collections.abc import Iterator
from typing import Final

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.rules.setup_training import refused_context
from hermetic.audit.setup import Claim, Setup

_LOST: Final = {"drop": "are left out", "truncate": "lose what is over"}


def _refusals(setup: Setup) -> Iterator[AuditFinding]:
    yield from (claim.finding("HM620") for claim in (*setup.refusals, *refused_context(setup)))


def _misread(setup: Setup) -> Iterator[AuditFinding]:
    yield from (claim.finding("HM621") for claim in setup.misread)


def _overflow(setup: Setup) -> Iterator[AuditFinding]:
    overflow = setup.overflow
    if overflow is None or overflow.asked or overflow.policy not in _LOST or _never_set(setup):
        return
    yield Claim(
        what=f"documents of more than {_row(setup)} {_LOST[overflow.policy]}, and nothing here asks for it",
        setting=overflow.setting,
        way_out=f"Write {overflow.setting.place.key} down, so that it is a choice; hermetic plan counts the tokens",
    ).finding("HM720")


def _capacity(setup: Setup) -> Iterator[AuditFinding]:
    if setup.joined and _never_set(setup) and setup.capacity is not None:
        yield Claim(
            what=f"rows have {setup.capacity.value} tokens because nobody said otherwise, and longer documents suffer "
            "for it",
            setting=setup.capacity,
            way_out=f"Write {setup.capacity.place.key} down; hermetic plan shows what a length costs",
        ).finding("HM721")


def _never_set(setup: Setup) -> bool:
    """The tokens of a row are a number that the stack chose."""
    capacity = setup.capacity
    return capacity is not None and not capacity.written and isinstance(capacity.value, int)


def _row(setup: Setup) -> str:
    capacity = setup.capacity
    return f"{capacity.value} tokens" if capacity and isinstance(capacity.value, int) else "a row's tokens"


RULES: Final = (
    Rule(
        code="HM620",
        name="the-stack-refuses",
        what="The stack will not start with these settings.",
        why="A job that waited in a queue ends at its first line; worse, an older version of the stack may not refuse.",
        bad=Example(
            door="swift",
            file="train.sh",
            text="swift sft --model Qwen/Qwen3-0.6B --dataset chats.jsonl --tuner_type lora --max_length 4096 \\\n"
            "  --truncation_strategy right --packing true --attn_impl sdpa\n",
        ),
        good=Example(
            door="swift",
            file="train.sh",
            text="swift sft --model Qwen/Qwen3-0.6B --dataset chats.jsonl --tuner_type lora --max_length 4096 \\\n"
            "  --truncation_strategy right --packing true --attn_impl flash_attn\n",
        ),
        fix="Change the setting that the finding names.",
        sources=(
            "docs/doctor.md",
            "huggingface/trl#6843",
            "NVIDIA-NeMo/Megatron-Bridge#3117",
            "https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html",
        ),
        check=_refusals,
    ),
    Rule(
        code="HM621",
        name="text-taken-for-true",
        what="A switch is written as text, and the stack takes any text for true.",
        why='packing: "false" turns packing on, in stacks that hand YAML to their settings as it is.',
        bad=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ntemplate: qwen\ndataset: identity\n"
            'cutoff_len: 4096\nneat_packing: "false"\n',
        ),
        good=Example(
            door="llamafactory",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ntemplate: qwen\ndataset: identity\n"
            "cutoff_len: 4096\nneat_packing: false\n",
        ),
        fix="Write true or false without quotes.",
        sources=("https://github.com/hiyouga/LLaMA-Factory/blob/main/src/llamafactory/hparams/parser.py",),
        check=_misread,
    ),
    Rule(
        code="HM720",
        name="long-documents-discarded",
        what="Documents that are longer than a row are dropped or truncated by default, and nothing asks for it.",
        why="A user lost 99.8 % of the tokens to bfd packing that truncates; another lost 95 % of the documents. "
        "No message was seen.",
        bad=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "attn_implementation: flash_attention_2\n",
        ),
        good=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "attn_implementation: flash_attention_2\nexcess_length_strategy: raise\n",
        ),
        fix="Write the policy down, best one that raises or splits; count what is over with hermetic plan.",
        sources=("huggingface/trl#4554", "huggingface/trl#467", "huggingface/trl#5075"),
        check=_overflow,
    ),
    Rule(
        code="HM721",
        name="capacity-left-at-its-default",
        what="The tokens of a packed row are the stack's default: 1024 in TRL, 512 in Axolotl, 2048 in LLaMA-Factory.",
        why="It decides which documents are cut or dropped, and was written for a demonstration.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\npacking: true\n"
            "packing_strategy: bfd_split\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\npacking: true\n"
            "packing_strategy: bfd_split\nmax_length: 4096\n",
        ),
        fix="Write the length of a row down.",
        sources=("huggingface/trl#4554", "https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/sft_config.py"),
        check=_capacity,
    ),
)

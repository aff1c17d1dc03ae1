"""Topics 6 and 7 of a configuration: what a stack refuses or misreads, and what becomes of documents too long."""

from collections.abc import Iterator
from typing import Final

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.rules.setup_training import refused_context
from hermetic.audit.setup import COUNTED, LOST, UNKNOWN, Claim, Setup, findings_in


def _refusals(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in((*setup.refusals, *refused_context(setup)), "HM620")


def _misread(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.misread, "HM621")


def _overflow(setup: Setup) -> Iterator[AuditFinding]:
    overflow = setup.overflow
    if overflow is None or overflow.policy not in LOST:
        return
    what = f"documents of more than {setup.row} {LOST[overflow.policy]}"
    against = overflow.against
    if against is not None:
        yield Claim(
            what=f"{what}, whatever {against.place.key} says: with packing, nothing looks at it",
            setting=against,
            way_out=f"Leave {against.place.key} out, and choose a {overflow.setting.place.key} that splits",
            certainty="likely",
        ).finding("HM720")
    elif _left_to_the_stack(setup):
        yield Claim(
            what=f"{what}, and neither the length nor that policy was chosen here",
            setting=overflow.setting,
            way_out=f"Write {_names_of_choices(setup)} down; {COUNTED}",
            certainty="likely",
        ).finding("HM720")


def _left_to_the_stack(setup: Setup) -> bool:
    """Documents are discarded by default, at a length that is a default, too."""
    capacity, overflow = setup.capacity, setup.overflow
    by_default = capacity is None or (not capacity.written and capacity.value is not UNKNOWN)
    return overflow is not None and overflow.discards and by_default


def _names_of_choices(setup: Setup) -> str:
    names = [one.setting.place.key for one in (setup.overflow,) if one is not None]
    return " and ".join(dict.fromkeys([setup.capacity.place.key, *names] if setup.capacity else names))


def _capacity(setup: Setup) -> Iterator[AuditFinding]:
    capacity = setup.capacity
    by_default = capacity is not None and not capacity.written and isinstance(capacity.value, int)
    if capacity is None or not by_default or not setup.joined or _left_to_the_stack(setup):
        return
    yield Claim(
        what=f"rows have {capacity.value} tokens because nobody chose a length, and that decides which documents are "
        "too long",
        setting=capacity,
        way_out=f"Write {capacity.place.key} down; {COUNTED}",
        certainty="likely",
    ).finding("HM721")


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
        what="Documents that are longer than a row are dropped or truncated, and neither that nor the row's length was "
        "chosen, or what was chosen is not looked at.",
        why="A user lost 99.8 % of the tokens to bfd packing that truncates; another lost 95 % of the documents. "
        "No message was seen. Where the length was written down, the report has a note instead of a finding.",
        bad=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsample_packing: true\n"
            "attn_implementation: flash_attention_2\n",
        ),
        good=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "attn_implementation: flash_attention_2\n",
        ),
        fix="Write the length of a row down, and the policy: best one that raises or splits. hermetic pack with "
        "--on-overflow error names the first document that is too long and says how many there are; with drop or "
        "truncate it counts the tokens that are lost.",
        sources=("huggingface/trl#4554", "huggingface/trl#467", "huggingface/trl#5075"),
        check=_overflow,
    ),
    Rule(
        code="HM721",
        name="capacity-left-at-its-default",
        what="The length of a packed row is the stack's default, as TRL's 1024 tokens or Axolotl's 512, and longer "
        "documents are cut.",
        why="It decides which documents are cut, and nobody looked at their lengths to choose it.",
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

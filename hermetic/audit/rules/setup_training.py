"""Topics 4, 5 and 8 of a configuration: targets, weights, and rows that are split over devices."""

from collections.abc import Iterator
from typing import Final

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.setup import Claim, Setup, findings_in, in_versions


def _seams(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.seams, "HM420")


def _lost_masks(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.lost_masks, "HM421")


def _noise(setup: Setup) -> Iterator[AuditFinding]:
    if setup.neftune is not None and setup.joined:
        yield Claim(
            what="NEFTune's noise is divided by the root of the row's length, not of the document's, so packing "
            "weakens it, for short documents most",
            setting=setup.neftune,
            way_out="Leave the noise out, or train one document per row",
        ).finding("HM520")


def _per_row(setup: Setup) -> Iterator[AuditFinding]:
    if setup.joined:
        yield from findings_in(setup.per_row, "HM521")


def _router(setup: Setup) -> Iterator[AuditFinding]:
    if setup.router_loss is not None and setup.joined:
        yield Claim(
            what="a router's auxiliary loss is taken over the whole row, and not over each document",
            setting=setup.router_loss,
            way_out="Set its weight to 0, or accept that it depends on how documents were packed",
        ).finding("HM522")


def _torch_context(setup: Setup) -> Iterator[AuditFinding]:
    for axis in setup.parallel:
        if axis.kind != "torch" or setup.layout not in {"packed", "flattened"}:
            continue
        claim = Claim(
            what=f"context parallelism over {axis.size.text} devices puts the causal mask in the place of others, so "
            "all documents of a row see each other",
            setting=axis.size,
            way_out="Leave packing off, or split rows with Ulysses (sp_size) and flash attention",
        )
        refused = setup.stack == "trl" and setup.layout == "packed"  # since 1.11, and flattened batches are not
        found = in_versions(claim, setup.versions, ("trl", "<", "1.11")) if refused else (claim,)
        yield from findings_in(found, "HM820")


def refused_context(setup: Setup) -> Iterator[Claim]:
    """TRL refuses since 1.11 what leaked before."""
    for axis in setup.parallel:
        if axis.kind == "torch" and setup.stack == "trl" and setup.layout in {"packed", "cut"}:
            claim = Claim(
                what="TRL refuses packing together with context parallelism",
                setting=axis.size,
                way_out="Leave packing off, or split rows with Ulysses (sp_size) and flash attention",
            )
            yield from in_versions(claim, setup.versions, ("trl", ">=", "1.11"))


def _ulysses(setup: Setup) -> Iterator[AuditFinding]:
    attention = setup.attention
    for axis in setup.parallel:
        if axis.kind != "ulysses" or setup.layout == "padded":
            continue
        if attention is not None and attention.kind in {"flash", "thd", "unknown"}:
            continue
        known = attention is not None and setup.joined and setup.stack == "trl"  # Axolotl has attention of its own
        name = attention.setting.text if attention else "any attention but flash"
        yield Claim(
            what=f"Ulysses throws masks away and leaves {name} the causal one, so documents of a packed row see each "
            "other",
            setting=axis.size,
            way_out="Set the attention to flash_attention_2, which reads positions",
            certainty="certain" if known else "likely",
        ).finding("HM821")


def _limits(setup: Setup) -> Iterator[AuditFinding]:
    yield from findings_in(setup.limits, "HM822")


RULES: Final = (
    Rule(
        code="HM420",
        name="seams-have-targets",
        what="The first token of a document keeps its label, so the last token of the one before learns it.",
        why="Nothing in the text before could predict that token. The doctor measured it with Axolotl 0.19 on plain "
        "texts; with conversations the first token is of the prompt and has no label.",
        bad=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "excess_length_strategy: raise\nattn_implementation: flash_attention_2\n"
            "datasets:\n  - path: texts.jsonl\n    type: completion\n",
        ),
        good=Example(
            door="axolotl",
            file="train.yaml",
            text="base_model: NousResearch/Llama-3.2-1B\nsequence_len: 4096\nsample_packing: true\n"
            "excess_length_strategy: raise\nattn_implementation: flash_attention_2\n"
            "datasets:\n  - path: chats.jsonl\n    type: chat_template\n",
        ),
        fix="Set the label of each document's first token to -100 before packing.",
        sources=("huggingface/trl#4170", "meta-pytorch/torchtune#2613", "pytorch/torchtitan#4075", "docs/doctor.md"),
        check=_seams,
    ),
    Rule(
        code="HM421",
        name="packing-loses-the-loss-mask",
        what="Packing drops the column that says which tokens the loss is of.",
        why="Prompts are then trained, too. A user's model wrote <|im_start|> forever.",
        bad=Example(
            door="trl",
            file="command.sh",
            text="trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara \\\n"
            "  --max_length 4096 --packing --assistant_only_loss \\\n"
            "  --attn_implementation flash_attention_2\n",
            versions=("trl==0.19.1",),
        ),
        good=Example(
            door="trl",
            file="command.sh",
            text="trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara \\\n"
            "  --max_length 4096 --packing --packing_strategy bfd --assistant_only_loss \\\n"
            "  --attn_implementation flash_attention_2\n",
        ),
        fix="Upgrade, or count the tokens that have a label in a packed row before training.",
        sources=("huggingface/trl#3728", "huggingface/trl#3749"),
        check=_lost_masks,
    ),
    Rule(
        code="HM520",
        name="noise-scaled-by-the-row",
        what="NEFTune is on, and rows are packed.",
        why="transformers divides the noise by the root of row length times width. A document of 64 tokens in a row of "
        "4096 is given an eighth of the noise that it would be given alone.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\nneftune_noise_alpha: 5\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: false\nneftune_noise_alpha: 5\n",
        ),
        fix="Leave the noise out of packed training.",
        sources=(
            "https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/integrations/neftune.py",
            "docs/probe.md",
        ),
        check=_noise,
    ),
    Rule(
        code="HM521",
        name="loss-averaged-by-rows",
        what="The loss is averaged by rows, micro-batches or devices, however many targets each has.",
        why="A token's weight then depends on what it was packed with. Two parts of 2 and 4 targets with means 2 and 5 "
        "have the loss 4; the mean of their means is 3.5.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\naverage_tokens_across_devices: false\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\naverage_tokens_across_devices: true\n",
        ),
        fix="Divide the sum of a step's losses by all of its targets.",
        sources=("huggingface/transformers#34242", "huggingface/transformers#34373", "NVIDIA/Megatron-LM#7207"),
        check=_per_row,
    ),
    Rule(
        code="HM522",
        name="router-loss-over-the-row",
        what="A mixture of experts has an auxiliary loss, and it is taken over packed rows.",
        why="No document reaches another, but the loss is not that of the documents alone: 2.00 and 2.07 alone, 2.03 "
        "packed, on a tiny Mixtral.",
        bad=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-30B-A3B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\nrouter_aux_loss_coef: 0.001\n",
        ),
        good=Example(
            door="trl",
            file="train.yaml",
            text="model_name_or_path: Qwen/Qwen3-30B-A3B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
            "packing: true\npacking_strategy: bfd_split\nrouter_aux_loss_coef: 0.0\n",
        ),
        fix="Set its weight to 0, or know that it depends on how documents were packed.",
        sources=("NVIDIA/Megatron-LM#6115", "docs/probe.md"),
        check=_router,
    ),
    Rule(
        code="HM820",
        name="context-parallel-drops-the-mask",
        what="PyTorch's context parallelism splits packed rows.",
        why="It puts the causal mask in the place of any other. All positions of the later documents changed, and "
        "documentation had recommended the combination.",
        bad=Example(
            door="trl",
            file="command.sh",
            text="accelerate launch --use_parallelism_config --parallelism_config_cp_size 2 -m trl.scripts.sft \\\n"
            "  --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --max_length 32768 \\\n"
            "  --packing --packing_strategy bfd_split\n",
        ),
        good=Example(
            door="trl",
            file="command.sh",
            text="accelerate launch --use_parallelism_config --parallelism_config_cp_size 2 -m trl.scripts.sft \\\n"
            "  --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --max_length 32768\n",
        ),
        fix="Do not pack with it; split rows with Ulysses and flash attention instead.",
        sources=("huggingface/trl#6843", "leaks/context_parallel_hooks.py"),
        check=_torch_context,
    ),
    Rule(
        code="HM821",
        name="ulysses-without-flash",
        what="DeepSpeed's Ulysses splits packed rows, and the attention is not flash attention.",
        why="It throws 4-D masks away and builds a causal one for FlexAttention, so that only an attention that reads "
        "positions keeps documents apart.",
        bad=Example(
            door="trl",
            file="command.sh",
            text="accelerate launch --use_parallelism_config --parallelism_config_sp_size 4 -m trl.scripts.sft \\\n"
            "  --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --max_length 32768 \\\n"
            "  --packing --packing_strategy bfd_split --attn_implementation sdpa\n",
        ),
        good=Example(
            door="trl",
            file="command.sh",
            text="accelerate launch --use_parallelism_config --parallelism_config_sp_size 4 -m trl.scripts.sft \\\n"
            "  --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --max_length 32768 \\\n"
            "  --packing --packing_strategy bfd_split --attn_implementation flash_attention_2\n",
        ),
        fix="Set the attention to flash_attention_2.",
        sources=(
            "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/sequence_parallel/ulysses_sp.py",
            "deepspeedai/DeepSpeed#8114",
        ),
        check=_ulysses,
    ),
    Rule(
        code="HM822",
        name="documents-do-not-fit-the-split",
        what="Rows are split over devices in a way that their documents do not fit.",
        why="Each device needs an equal and whole part of every document; rings without a way in for boundaries "
        "computed a loss of 1.84 times what it should be.",
        bad=Example(
            door="megatron",
            file="sft.yaml",
            text="model:\n  context_parallel_size: 2\n  calculate_per_token_loss: true\n"
            "ddp:\n  average_in_collective: false\ntrain:\n  micro_batch_size: 1\n"
            "dataset:\n  enable_offline_packing: true\n  offline_packing_specs:\n    packed_sequence_size: 8192\n",
        ),
        good=Example(
            door="megatron",
            file="sft.yaml",
            text="model:\n  context_parallel_size: 2\n  calculate_per_token_loss: true\n"
            "ddp:\n  average_in_collective: false\ntrain:\n  micro_batch_size: 1\n"
            "dataset:\n  enable_offline_packing: true\n  offline_packing_specs:\n    packed_sequence_size: 8192\n"
            "    pad_seq_to_mult: 4\n",
        ),
        fix="Pad each document to twice the degree of context parallelism, and take a ring that is given edges.",
        sources=(
            "axolotl-ai-cloud/axolotl#3608",
            "https://docs.nvidia.com/nemo/megatron-bridge/0.7.0/training/packed-sequences.html",
        ),
        check=_limits,
    ),
)

"""LLaMA-Factory's YAML and its command lines.

What it does, read in 0.9.3 and 0.9.5: in supervised fine-tuning ``packing`` packs whole documents and hands over a mask
of ones, padding included; ``neat_packing`` hands over a 4-D mask, or positions alone to flash attention, which takes
one row per device, and which the layers of two recurrent types then respect, too. Longer documents are dropped with a
warning, and nothing can be set for it. In pretraining packing is on by itself: texts are concatenated and cut. Values
are taken as YAML has them, so text counts as true.
"""

from typing import Final

from hermetic.audit.setup import (
    UNKNOWN,
    Attention,
    Claim,
    Layout,
    Overflow,
    Setting,
    Settings,
    Setup,
    Told,
    Versions,
    in_versions,
)
from hermetic.audit.stacks.families import model_of
from hermetic.audit.stacks.reading import Reader, attention_of
from hermetic.audit.stacks.trainer import accelerate_axes, trainer_facts

MARKS: Final = frozenset(
    {
        *("stage", "finetuning_type", "cutoff_len", "template", "dataset", "dataset_dir", "do_train", "flash_attn"),
        *("packing", "neat_packing", "lora_rank", "lora_target", "preprocessing_num_workers", "overwrite_cache"),
        *("model_name_or_path", "max_samples", "train_on_prompt", "mask_history", "val_size", "tokenized_path"),
    }
)

_PATCHED: Final = frozenset({"qwen3_5", "qwen3_5_moe"})
_ATTENTION: Final = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of a LLaMA-Factory configuration."""
    read = Reader(settings, "LLaMA-Factory", truthy_text=True)
    stage = read.word("stage", "sft")
    neat = read.flag("neat_packing", default=False)
    packing = neat if neat.value else read.flag("packing", "stage", default=stage.value == "pt" or None)
    layout = _layout(stage, packing)
    attention = _attention(read)
    facts = trainer_facts(read, router=("moe_aux_loss_coef",))
    capacity = read.number("cutoff_len", 2048, "packing", "stage")
    return Setup(
        stack="llamafactory",
        versions=versions,
        layout=layout,
        packing=packing,
        told=_told(layout, neat, attention),
        attention=attention,
        model=model_of(read.first("model_name_or_path"), base=read.folder),
        capacity=capacity,
        overflow=Overflow(policy="drop", asked=False, setting=capacity) if layout == "packed" else None,
        adapter=read.first("finetuning_type"),
        parallel=accelerate_axes(read),
        mixers_patched=_PATCHED if attention.kind == "flash" else frozenset(),
        mixers_patched_since=("llamafactory", ">=", "0.9.5"),
        cuts=_cuts(layout, packing),
        untold=_untold(layout, packing, neat, attention, facts["rows_per_device"]),
        seams=_seams(read, layout),
        refusals=_refusals(stage, neat, attention, facts["rows_per_device"], versions),
        misread=tuple(read.misread),
        **facts,
    )


def _layout(stage: Setting, packing: Setting) -> Layout:
    if UNKNOWN in {stage.value, packing.value}:
        return "unknown"
    if not packing.value or stage.value not in {"sft", "pt"}:
        return "padded"
    return "cut" if stage.value == "pt" else "packed"


def _attention(read: Reader) -> Attention:
    name = read.word("flash_attn", "auto", "packing")
    if name.value is UNKNOWN:
        return Attention(kind="unknown", setting=name)
    if name.value in {"auto", None}:  # leaves the choice to transformers
        return Attention(kind="sdpa", setting=name)
    kind = attention_of(Setting(value=_ATTENTION.get(name.value, name.value), place=name.place)).kind
    return Attention(kind=kind, setting=name)


def _told(layout: Layout, neat: Setting, attention: Attention) -> Told:
    if layout != "packed" or not neat.value:
        return "nothing"
    return "positions" if attention.kind == "flash" else "mask"


def _cuts(layout: Layout, packing: Setting) -> tuple[Claim, ...]:
    if layout != "cut":
        return ()
    return (
        Claim(
            what="in pretraining, texts are concatenated and cut at cutoff_len, under a causal mask that sees the row",
            setting=packing,
            way_out="Set packing to false, or pack whole documents with hermetic pack and train on its rows",
        ),
    )


def _untold(layout: Layout, packing: Setting, neat: Setting, attention: Attention, rows: Setting) -> tuple[Claim, ...]:
    if layout != "packed" or neat.value:
        return ()
    by_chance = attention.kind == "flash" and rows.value in {1, UNKNOWN}
    what = "packing alone lays documents end to end under a mask of ones"
    if by_chance:
        what += (
            "; only flash attention with one row per device then looks at positions, and there padding counts as "
            "documents"
        )
    return (
        Claim(
            what=what,
            setting=packing,
            way_out="Set neat_packing to true",
            certainty="likely" if by_chance or attention.kind == "unknown" else "certain",
        ),
    )


def _seams(read: Reader, layout: Layout) -> tuple[Claim, ...]:
    prompts = read.flag("train_on_prompt", default=False)
    if layout != "packed" or prompts.value is not True:
        return ()
    return (
        Claim(
            what="prompts have labels, so the first token of each document is a target of the document before",
            setting=prompts,
            way_out="Set train_on_prompt to false",
        ),
    )


def _refusals(
    stage: Setting, neat: Setting, attention: Attention, rows: Setting, versions: Versions
) -> tuple[Claim, ...]:
    if neat.value is not True:
        return ()
    if stage.value not in {"sft", UNKNOWN}:
        return (
            Claim(
                what=f"neat_packing is for supervised fine-tuning, and this is {stage.text}",
                setting=neat,
                way_out="Set neat_packing to false",
            ),
        )
    if attention.kind == "flash" and rows.value not in {1, UNKNOWN}:
        claim = Claim(
            what=f"neat_packing with flash attention takes one row per device, and there are {rows.text}",
            setting=rows,
            way_out="Set per_device_train_batch_size to 1, and gradient_accumulation_steps higher",
        )
        return in_versions(claim, versions, ("llamafactory", ">=", "0.9.5"))
    return ()

"""TRL's ``SFTConfig``, in YAML, on a command line or in a call.

What it does, read in its releases 0.15 to 1.16: ``packing`` cut and concatenated before 0.19, and packs whole documents
since, unless ``packing_strategy`` is ``wrapped``. ``bfd`` truncates what is longer than ``max_length``, ``bfd_split``
(since 1.0) splits it. Whole documents bring ``padding_free`` with them. Before 0.23 the collator hands over positions
to flash attention only. Since 1.11 packing with PyTorch's context parallelism is refused.
"""

from typing import Final

from hermetic.audit.setup import (
    UNKNOWN,
    Attention,
    Bound,
    Claim,
    Layout,
    Overflow,
    Setting,
    Settings,
    Setup,
    Versions,
    holds,
    in_versions,
)
from hermetic.audit.stacks.families import model_of
from hermetic.audit.stacks.reading import Reader, attention_of
from hermetic.audit.stacks.trainer import accelerate_axes, trainer_facts

MARKS: Final = frozenset(
    {
        *("packing", "packing_strategy", "eval_packing", "padding_free", "max_length", "max_seq_length"),
        *("model_name_or_path", "attn_implementation", "dtype", "use_peft", "lora_target_modules", "lora_task_type"),
        *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_text_field"),
        *("completion_only_loss", "assistant_only_loss", "dataset_kwargs", "chat_template_path", "loss_type"),
    }
)

_CUTS: Final[Bound] = ("trl", "<", "0.19")
_STRATEGIES: Final = ("bfd", "bfd_split", "bfd-requeue", "wrapped", "ffd")


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of an ``SFTConfig`` and what stands beside it."""
    read = Reader(settings, "TRL")
    packing = read.flag("packing", default=False)
    strategy = read.word("packing_strategy", "bfd", "packing")
    layout = _layout(read, packing, strategy, versions)
    attention = _attention(read)
    capacity = _capacity(read)
    return Setup(
        stack="trl",
        versions=versions,
        layout=layout,
        packing=packing if packing.written else read.flag("padding_free", default=False),
        told="nothing" if layout == "cut" else "edges",
        attention=attention,
        model=model_of(read.first("model_name_or_path", "model"), base=read.folder),
        capacity=capacity,
        overflow=_overflow(read, layout, strategy),
        adapter=read.first("peft_type", "peft_config.peft_type"),
        parallel=accelerate_axes(read),
        cuts=_cuts(layout, packing, strategy, versions),
        unread=_unread(layout, strategy, attention, versions),
        lost_masks=_lost_masks(read, layout, strategy, versions),
        refusals=_refusals(read, layout, strategy, capacity, versions),
        remarks=_notes(read),
        **trainer_facts(read),
    )


def _attention(read: Reader) -> Attention:
    nested = "model_init_kwargs.attn_implementation"
    name = nested if nested in read.settings else "attn_implementation"
    return attention_of(read.word(name, None, "packing", "padding_free", "model_name_or_path"))


def _layout(read: Reader, packing: Setting, strategy: Setting, versions: Versions) -> Layout:
    if packing.value is UNKNOWN or (packing.value and strategy.value is UNKNOWN):
        return "unknown"
    if packing.value:
        old = not strategy.written and holds(versions, _CUTS) is True
        return "cut" if old or strategy.value == "wrapped" else "packed"
    flattened = read.flag("padding_free", default=False).value
    return "unknown" if flattened is UNKNOWN else "flattened" if flattened else "padded"


def _capacity(read: Reader) -> Setting:
    if "max_length" not in read.settings and "max_seq_length" in read.settings:
        return read.number("max_seq_length", None)
    return read.number("max_length", 1024, "packing")


def _overflow(read: Reader, layout: Layout, strategy: Setting) -> Overflow | None:
    if layout != "packed":
        return None
    truncates = strategy.value in {"bfd", "ffd"}  # and keeps the beginning
    keeps = read.word("truncation_mode", None)
    return Overflow(
        policy="truncate" if truncates else "split",
        asked=strategy.written,
        setting=strategy,
        against=keeps if truncates and keeps.value == "keep_end" else None,
    )


def _cuts(layout: Layout, packing: Setting, strategy: Setting, versions: Versions) -> tuple[Claim, ...]:
    if layout == "cut" and strategy.value == "wrapped":
        return (
            Claim(
                what="documents are concatenated and cut at max_length, under a causal mask that sees the whole row",
                setting=strategy,
                way_out="Set packing_strategy to bfd_split or bfd, which pack whole documents and say where they start",
            ),
        )
    if layout in {"packed", "cut"} and not strategy.written:
        old = Claim(
            what="packing concatenates documents and cuts them at max_length",
            setting=packing,
            way_out="Write packing_strategy: a TRL that cuts refuses the name, and a newer one packs whole documents",
        )
        return in_versions(old, versions, _CUTS)
    return ()


def _unread(layout: Layout, strategy: Setting, attention: Attention, versions: Versions) -> tuple[Claim, ...]:
    if layout not in {"packed", "flattened"} or attention.kind in {"flash", "unknown"}:
        return ()
    if attention.kind == "other":
        return (
            Claim(
                what=f"{attention.setting.text} is no attention of transformers; one without a mask function of its "
                "own is given no mask, and then documents see each other",
                setting=attention.setting,
                way_out="Register a mask function under the same name, and run hermetic probe on the model",
                certainty="likely",
            ),
        )
    if strategy.value not in {"bfd", "ffd"}:  # no TRL that leaves the positions out has the others
        return ()
    claim = Claim(
        what=f"the collator hands no positions to {attention.setting.text}, so the row is one document to it",
        setting=attention.setting,
        way_out="Upgrade TRL, or set attn_implementation to flash_attention_2",
    )
    return in_versions(claim, versions, ("trl", "<", "0.23"))


def _lost_masks(read: Reader, layout: Layout, strategy: Setting, versions: Versions) -> tuple[Claim, ...]:
    only = read.flag("assistant_only_loss", default=False)
    if layout not in {"packed", "cut"} or only.value is not True:
        return ()
    if strategy.written and strategy.value in {"bfd", "bfd_split"}:  # no TRL that loses the masks has them
        return ()
    claim = Claim(
        what="packing drops the column of assistant masks, so that the loss is taken over everything",
        setting=only,
        way_out="Upgrade TRL, or leave packing off",
    )
    return in_versions(claim, versions, ("trl", "<", "0.20"))


def _refusals(
    read: Reader, layout: Layout, strategy: Setting, capacity: Setting, versions: Versions
) -> tuple[Claim, ...]:
    found: list[Claim] = []
    if layout in {"packed", "cut"} and capacity.value is None:
        found.append(
            Claim(
                what="TRL packs rows of max_length tokens, and there is none",
                setting=capacity,
                way_out="Set max_length to the tokens of a row",
            )
        )
    if layout in {"packed", "cut"} and strategy.value not in {*_STRATEGIES, UNKNOWN}:
        found.append(
            Claim(
                what=f"TRL has no packing strategy {strategy.text!r}",
                setting=strategy,
                way_out="Take one of bfd, bfd_split and wrapped",
            )
        )
    return (*found, *_refused_by_version(read, layout, capacity, versions))


def _refused_by_version(read: Reader, layout: Layout, capacity: Setting, versions: Versions) -> tuple[Claim, ...]:
    found: tuple[Claim, ...] = ()
    if layout == "flattened" and capacity.value is not None:
        claim = Claim(
            what="padding_free without packing does not keep to max_length",
            setting=capacity,
            way_out="Set max_length to null and truncate the documents yourself, or set packing to true",
        )
        found += in_versions(claim, versions, ("trl", ">=", "1.0"))
    old = read.first("max_seq_length")
    if old is not None:
        claim = Claim(
            what="max_seq_length is called max_length now, and the old name is an unknown argument",
            setting=old,
            way_out="Write max_length",
        )
        found += in_versions(claim, versions, ("trl", ">=", "0.20"))
    return found


def _notes(read: Reader) -> tuple[str, ...]:
    if read.on("eval_packing") and not read.on("packing"):
        return ("The evaluation is packed and the training is not; this audit is of the training.",)
    return ()

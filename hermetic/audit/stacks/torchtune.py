"""torchtune's YAML of components.

What it does, read in 0.6.1, its last release: ``packed`` packs whole documents in order and makes a mask over pairs of
tokens, so that they are apart in every model. Tokenizers truncate what is longer than a row, so that none reaches the
packing. Labels are shifted over the whole row, so where a text's first token has a label, the text before learns it.
"""

import re
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
    Versions,
    in_versions,
)
from hermetic.audit.stacks.reading import Reader

MARKS: Final = frozenset({"*._component_"})

_DATASET: Final = re.compile(r"dataset(\.\d+)?$")


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of a torchtune configuration."""
    read = Reader(settings, "torchtune", truthy_text=True)
    dataset = _packed_dataset(read)
    packing = read.flag(f"{dataset}.packed", default=False)
    layout: Layout = "unknown" if packing.value is UNKNOWN else "packed" if packing.value else "padded"
    capacity = read.number("tokenizer.max_seq_len", None, f"{dataset}.packed")
    return Setup(
        stack="torchtune",
        versions=versions,
        layout=layout,
        packing=packing,
        told="mask",
        attention=Attention(kind="flex", setting=Setting(value="flex or sdpa", place=packing.place, written=False)),
        capacity=capacity,
        overflow=_overflow(read) if layout == "packed" and capacity.value is not None else None,
        rows_per_device=read.number("batch_size", None),
        seams=_seams(read, dataset, layout, versions),
        refusals=_refusals(layout, capacity),
        misread=tuple(read.misread),
    )


def _packed_dataset(read: Reader) -> str:
    """The prefix of the first data set that is packed, or of the only one."""
    prefixes = {name.rsplit(".", 1)[0] for name in read.settings}
    candidates = sorted(prefix for prefix in prefixes if _DATASET.fullmatch(prefix))
    packed = (prefix for prefix in candidates if read.flag(f"{prefix}.packed", default=False).value)
    return next(packed, candidates[0] if candidates else "dataset")


def _overflow(read: Reader) -> Overflow:
    side = read.word("tokenizer.truncation_type", "right", "tokenizer.max_seq_len")
    return Overflow(policy="truncate", asked=side.written, setting=side)


def _seams(read: Reader, dataset: str, layout: Layout, versions: Versions) -> tuple[Claim, ...]:
    component = read.word(f"{dataset}._component_", "")
    if layout != "packed" or not str(component.value).endswith("text_completion_dataset"):
        return ()
    claim = Claim(
        what="every token of these texts has a label, and labels are shifted over the whole row, so that the last "
        "token of a text learns the first of the next",
        setting=component,
        way_out="Pack with hermetic pack, or take a torchtune in which labels are shifted before packing",
    )
    return in_versions(claim, versions, ("torchtune", "<", "0.7"))


def _refusals(layout: Layout, capacity: Setting) -> tuple[Claim, ...]:
    if layout != "packed" or capacity.value is not None:
        return ()
    return (
        Claim(
            what="a packed data set needs to know the tokens of a row, and tokenizer.max_seq_len is not set",
            setting=capacity,
            way_out="Set tokenizer.max_seq_len",
        ),
    )

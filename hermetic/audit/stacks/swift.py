"""ms-swift's arguments, of ``swift`` and ``megatron``, and its YAML and JSON.

What it does, read in 3.8 and 4.6: ``packing`` packs whole documents and demands flash attention, which is given edges
made of positions; Megatron-SWIFT gives edges to Transformer Engine. Longer documents are deleted unless
``truncation_strategy`` says otherwise. The first label of a document is taken away.
"""

from typing import Final

from hermetic.audit.setup import (
    UNKNOWN,
    Attention,
    Claim,
    Layout,
    Overflow,
    Parallel,
    Setting,
    Settings,
    Setup,
    Versions,
)
from hermetic.audit.stacks.families import model_of
from hermetic.audit.stacks.reading import Reader, attention_of, more_than_one
from hermetic.audit.stacks.trainer import trainer_facts

MARKS: Final = frozenset(
    {
        *("model", "dataset", "tuner_type", "train_type", "tuner_backend", "attn_impl", "torch_dtype", "template"),
        *("packing", "padding_free", "packing_length", "packing_num_proc", "max_length", "truncation_strategy"),
        *("split_dataset_ratio", "loss_scale", "sequence_parallel_size", "use_hf", "model_type", "target_modules"),
        *("cached_dataset", "attention_backend", "lazy_tokenize"),
    }
)

_FLASH: Final = {"flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4"}
_POLICIES: Final = {"delete": "drop", "left": "truncate", "right": "truncate", "split": "split"}
_OF_MEGATRON: Final = ("attention_backend", "tensor_model_parallel_size", "micro_batch_size", "context_parallel_size")


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of ms-swift's arguments."""
    read = Reader(settings, "ms-swift")
    packing = read.flag("packing", default=False)
    if not packing.value:
        packing = read.flag("padding_free", default=False) if "padding_free" in settings else packing
    layout = _layout(packing)
    megatron = read.first(*_OF_MEGATRON) is not None
    attention = _attention(read, megatron=megatron)
    return Setup(
        stack="swift",
        versions=versions,
        layout=layout,
        packing=packing,
        told="edges",
        attention=attention,
        model=model_of(read.first("model"), base=read.folder),
        capacity=_capacity(read),
        overflow=_overflow(read) if layout == "packed" else None,
        adapter=read.first("tuner_type", "train_type"),
        parallel=_parallel(read),
        refusals=_refusals(read, layout, attention, megatron=megatron),
        **trainer_facts(read, router=("router_aux_loss_coef", "moe_aux_loss_coeff")),
    )


def _layout(packing: Setting) -> Layout:
    if packing.value is UNKNOWN:
        return "unknown"
    if not packing.value:
        return "padded"
    return "flattened" if packing.place.key.endswith("padding_free") else "packed"


def _attention(read: Reader, *, megatron: bool) -> Attention:
    if megatron:
        return Attention(kind="thd", setting=read.word("attention_backend", "flash"))
    name = read.word("attn_impl", None, "packing")
    if name.value in _FLASH:
        return Attention(kind="flash", setting=name)
    return attention_of(name)


def _capacity(read: Reader) -> Setting | None:
    return read.number("packing_length" if "packing_length" in read.settings else "max_length", None, "packing")


def _overflow(read: Reader) -> Overflow:
    written = read.word("truncation_strategy", "delete", "packing")
    policy = _POLICIES.get(written.value if isinstance(written.value, str) else "", "unknown")
    return Overflow(policy=policy, asked=written.written, setting=written)  # type: ignore[arg-type] # a value of the above


def _parallel(read: Reader) -> tuple[Parallel, ...]:
    names = ("sequence_parallel_size", "context_parallel_size")
    name = next((name for name in names if name in read.settings), names[0])
    size = read.number(name, None)
    return (Parallel(kind="ring", size=size),) if more_than_one(size) else ()


def _refusals(read: Reader, layout: Layout, attention: Attention, *, megatron: bool) -> tuple[Claim, ...]:
    found = []
    joined = layout in {"packed", "flattened"}
    if joined and not megatron and attention.setting.value not in {*_FLASH, UNKNOWN}:
        name = attention.setting
        found.append(
            Claim(
                what=f"ms-swift packs for flash attention only, and this is {name.text}",
                setting=name,
                way_out="Set attn_impl to flash_attn",
            )
        )
    lazy = read.flag("lazy_tokenize", default=False)
    if layout == "packed" and lazy.value is True:
        what = "ms-swift cannot pack documents that it tokenizes only when they are needed"
        found.append(Claim(what=what, setting=lazy, way_out="Set lazy_tokenize to false"))
    return tuple(found)

"""Megatron-Bridge's and NeMo's YAML, and the flags of Megatron-LM.

What it does, read in Megatron-Bridge 0.6.2: packed fine-tuning hands edges to Transformer Engine, which keeps documents
apart; offline packing takes one row per micro-batch, packing inside of a batch several. Longer documents are left out.
The loss of a micro-batch is divided by its own tokens unless ``calculate_per_token_loss`` is set, and fine-tuning with
context parallelism asks for that. Pretraining data is one stream that is cut; ``reset_attention_mask`` makes a mask for
it that Transformer Engine does not read.
"""

import math
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
from hermetic.audit.stacks.reading import Reader, more_than_one

MARKS: Final = frozenset(
    {
        *("model.context_parallel_size", "model.tensor_model_parallel_size", "model.seq_length"),
        *("model.pipeline_model_parallel_size", "model.calculate_per_token_loss", "ddp.average_in_collective"),
        *("train.micro_batch_size", "train.global_batch_size", "train.train_iters", "checkpoint.pretrained_checkpoint"),
        *("dataset.enable_offline_packing", "dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch"),
        *("dataset.offline_packing_specs.*", "dataset.packed_sequence_specs.*", "dataset.reset_attention_mask"),
        *("model.data.train_ds.packed_sequence", "model.micro_batch_size", "model.global_batch_size", "dataset.blend"),
        *("reset_attention_mask", "reset_position_ids", "tensor_model_parallel_size", "transformer_impl"),
        *("context_parallel_size", "pipeline_model_parallel_size", "seq_length"),
    }
)

_SPECS: Final = ("dataset.offline_packing_specs", "dataset.packed_sequence_specs")


class _Names:
    """One setting under the names that Bridge, NeMo and Megatron-LM have for it."""

    cp = ("model.context_parallel_size", "context_parallel_size")
    tp = ("model.tensor_model_parallel_size", "tensor_model_parallel_size")
    rows = ("train.micro_batch_size", "model.micro_batch_size", "micro_batch_size")
    per_token = ("model.calculate_per_token_loss", "calculate_per_token_loss")
    reset = ("dataset.reset_attention_mask", "model.data.reset_attention_mask", "reset_attention_mask")
    in_batch = ("dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch")
    offline = ("dataset.enable_offline_packing", "model.data.train_ds.packed_sequence")
    pretraining = (
        "dataset.blend",
        "dataset.data_path",
        "dataset.blend_per_split",
        "model.data.data_prefix",
        "data_path",
    )
    length = ("model.seq_length", "dataset.seq_length", "seq_length", "model.encoder_seq_length")


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of a Megatron configuration."""
    read = Reader(settings, "Megatron")
    layout, packing = _layout(read)
    capacity = _capacity(read, packing)
    offline = layout == "packed" and not packing.place.key.endswith(_Names.in_batch)
    refusals = _refusals(read, layout, packing, offline=offline)
    return Setup(
        stack="megatron",
        versions=versions,
        layout=layout,
        packing=packing,
        told="edges" if layout == "packed" else "nothing",
        attention=Attention(kind="thd", setting=_word(read, ("transformer_impl",), "transformer_engine")),
        capacity=capacity,
        overflow=Overflow(policy="drop", asked=False, setting=capacity) if offline and capacity.written else None,
        rows_per_device=_number(read, _Names.rows, None),
        adapter=read.first("peft.peft_scheme", "model.peft.peft_scheme"),
        parallel=_parallel(read),
        router_loss=_sequence_balance(read),
        cuts=_cuts(read, layout, packing),
        unread=_unread(read, layout),
        per_row=_per_row(read, layout),
        refusals=refusals,
        limits=_limits(read, offline=offline),
    )


def _first(read: Reader, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in read.settings), names[0])


def _flag(read: Reader, names: tuple[str, ...]) -> Setting:
    return read.flag(_first(read, names), default=False)


def _number(read: Reader, names: tuple[str, ...], default: float | None) -> Setting:
    return read.number(_first(read, names), default)


def _word(read: Reader, names: tuple[str, ...], default: str | None) -> Setting:
    return read.word(_first(read, names), default)


def _layout(read: Reader) -> tuple[Layout, Setting]:
    for names in (_Names.offline, _Names.in_batch):
        flag = _flag(read, names)
        if flag.value is UNKNOWN:
            return "unknown", flag
        if flag.value:
            return "packed", flag
    specs = next((name for name in read.settings if name.startswith(_SPECS)), None)
    if specs is not None and not any(name in read.settings for name in _Names.offline):
        return "packed", read.settings[specs]
    of_pretraining = read.first(*_Names.reset, *_Names.pretraining)
    if of_pretraining is not None:
        return "cut", of_pretraining
    return "padded", _flag(read, _Names.offline)


def _capacity(read: Reader, packing: Setting) -> Setting:
    names = tuple(f"{specs}.packed_sequence_size" for specs in _SPECS)
    name = _first(read, (*names, *_Names.length))
    return read.number(name, None, packing.place.key)


def _cuts(read: Reader, layout: Layout, packing: Setting) -> tuple[Claim, ...]:
    if layout != "cut" or _flag(read, _Names.reset).value is not False:
        return ()
    return (
        Claim(
            what="documents of the pretraining data are one stream that is cut at seq_length, under a causal mask",
            setting=packing,
            way_out="Fine-tune on packed whole documents (enable_offline_packing), whose edges reach the kernels",
        ),
    )


def _unread(read: Reader, layout: Layout) -> tuple[Claim, ...]:
    reset = _flag(read, _Names.reset)
    if layout != "cut" or reset.value is not True or _word(read, ("transformer_impl",), None).value == "local":
        return ()
    return (
        Claim(
            what="Transformer Engine does not read the mask of reset_attention_mask, so documents are not apart",
            setting=reset,
            way_out="Pack whole documents, whose edges reach the kernels, or set transformer_impl to local",
        ),
    )


def _per_row(read: Reader, layout: Layout) -> tuple[Claim, ...]:
    per_token = _flag(read, _Names.per_token)
    if layout != "packed" or per_token.value is not False or more_than_one(_number(read, _Names.cp, 1)):
        return ()  # with context parallelism it is refused
    return (
        Claim(
            what="each micro-batch divides its loss by its own tokens, and the means are averaged, so that a token "
            "weighs more in a row that has few targets",
            setting=per_token,
            way_out="Set calculate_per_token_loss to true, and ddp.average_in_collective to false",
        ),
    )


def _refusals(read: Reader, layout: Layout, packing: Setting, *, offline: bool) -> tuple[Claim, ...]:
    specs = next((name for name in read.settings if name.startswith(_SPECS[0])), None)
    if specs and packing.value is False and "dataset.enable_offline_packing" in read.settings:
        what = "offline_packing_specs are given, and enable_offline_packing is not set"
        return (Claim(what=what, setting=packing, way_out="Set dataset.enable_offline_packing to true"),)
    if layout != "packed":
        return ()
    rows = _number(read, _Names.rows, None)
    found = []
    if offline and more_than_one(rows):
        what = f"rows that were packed offline are trained one per micro-batch, and micro_batch_size is {rows.text}"
        found.append(Claim(what=what, setting=rows, way_out="Set micro_batch_size to 1, and pack longer rows"))
    if not offline and rows.value == 1:
        what = "packing inside of a batch joins the documents of a micro-batch, and there is one"
        found.append(Claim(what=what, setting=rows, way_out="Set micro_batch_size above 1, or pack offline"))
    return (*found, *_refused_with_context_parallel(read))


def _refused_with_context_parallel(read: Reader) -> tuple[Claim, ...]:
    size = _number(read, _Names.cp, 1)
    if not more_than_one(size):
        return ()
    found = []
    per_token = _flag(read, _Names.per_token)
    if per_token.value is False:
        what = f"fine-tuning with context parallelism over {size.text} devices needs calculate_per_token_loss"
        way_out = "Set model.calculate_per_token_loss to true: a device whose tokens have no target then adds nothing"
        found.append(Claim(what=what, setting=per_token if per_token.written else size, way_out=way_out))
    average = read.flag("ddp.average_in_collective", default=None)
    if average.value is True:
        what = "fine-tuning with context parallelism adds up gradients, and average_in_collective averages them"
        found.append(Claim(what=what, setting=average, way_out="Set ddp.average_in_collective to false"))
    return tuple(found)


def _limits(read: Reader, *, offline: bool) -> tuple[Claim, ...]:
    size = _number(read, _Names.cp, 1)
    if not offline or not more_than_one(size):
        return ()
    name = _first(read, tuple(f"{specs}.pad_seq_to_mult" for specs in _SPECS))
    multiple = read.number(name, 1, _Names.cp[0])
    needed = _alignment(read, int(size.value))
    if not isinstance(multiple.value, int) or multiple.value % needed == 0:
        return ()
    return (
        Claim(
            what=f"each document has to be a multiple of {needed} tokens to be split over {size.text} devices, and "
            f"documents are padded to multiples of {multiple.value}",
            setting=multiple if multiple.written else size,
            way_out=f"Set pad_seq_to_mult to {needed}",
        ),
    )


def _alignment(read: Reader, context: int) -> int:
    tensor = _number(read, _Names.tp, 1)
    sequence = _flag(read, ("model.sequence_parallel", "sequence_parallel"))
    if sequence.value is True and isinstance(tensor.value, int) and tensor.value > 1:
        return math.lcm(2 * context, context * tensor.value)
    return 2 * context


def _parallel(read: Reader) -> tuple[Parallel, ...]:
    size = _number(read, _Names.cp, 1)
    return (Parallel(kind="ring", size=size),) if more_than_one(size) else ()


def _sequence_balance(read: Reader) -> Setting | None:
    """The weight of the balance loss that Megatron takes over each sequence, which a packed row is one of."""
    kind = _word(read, ("model.moe_router_load_balancing_type", "moe_router_load_balancing_type"), None)
    weight = _number(read, ("model.moe_aux_loss_coeff", "moe_aux_loss_coeff"), None)
    over_sequences = kind.value == "seq_aux_loss"
    return weight if over_sequences and isinstance(weight.value, (int, float)) and weight.value > 0 else None

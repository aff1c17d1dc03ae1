"""Axolotl's YAML.

What it does, read in its releases 0.12 to 0.21: ``sample_packing`` packs whole documents and hands over positions.
Attention of its list (flash, flex, xformers, sage) reads them; ``sdpa`` and ``eager`` do since 0.18, when the mask that
hid them was dropped; without ``attn_implementation`` the mask stays. Longer documents are dropped unless
``excess_length_strategy`` says otherwise. First tokens of documents keep their labels. Since 0.21 it patches a list of
recurrent types and refuses another.
"""

import re
from collections.abc import Iterator
from typing import Final

from hermetic.audit.setup import (
    UNKNOWN,
    Attention,
    Claim,
    Layout,
    Model,
    Overflow,
    Parallel,
    Setting,
    Settings,
    Setup,
    Versions,
    in_versions,
)
from hermetic.audit.stacks.families import model_of
from hermetic.audit.stacks.reading import Reader, attention_of, more_than_one
from hermetic.audit.stacks.trainer import averages_of_devices, written_number

MARKS: Final = frozenset(
    {
        *("base_model", "sequence_len", "micro_batch_size", "sample_packing", "eval_sample_packing"),
        *("pad_to_sequence_len", "excess_length_strategy", "adapter", "num_epochs", "val_set_size", "train_on_inputs"),
        *("flash_attention", "sdp_attention", "flex_attention", "xformers_attention", "attn_implementation"),
        *("datasets.0.path", "pretraining_dataset", "dataset_prepared_path", "context_parallel_size", "chat_template"),
    }
)

_FLAGS: Final = {  # in the order in which Axolotl looks at them
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
_READ_POSITIONS: Final = {
    *("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention"),
    *("xformers", "sage", "kernels-community/flash-attn2", "kernels-community/flash-attn3"),
    "kernels-community/sage-attention",
}
_PATCHED: Final = frozenset(
    {
        *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "kimi_linear", "lfm2"),
        *("lfm2_moe", "mamba", "mamba2", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text"),
    }
)
_REFUSED: Final = frozenset({"inkling", "jamba", "minimax", "olmo_hybrid", "zamba", "zamba2"})
_PLUGIN: Final = "hermetic.integrations.axolotl.HermeticPlugin"
_SEALED: Final = (
    "hermetic's plugin seals the model, which then keeps documents apart whatever its attention and layers read, or "
    "refuses the batch; nothing is said here of what that covers. Axolotl goes on without a plugin that it cannot "
    'load: see that its log has no "Failed to load plugin".'
)
_RING_WITHOUT_EDGES: Final = {"batch_ring", "batch_zigzag", "batch_stripe"}


def setup_of(settings: Settings, *, versions: Versions) -> Setup:
    """The facts of an Axolotl configuration."""
    read = Reader(settings, "Axolotl")
    packing = _packing(read)
    layout = _layout(packing)
    attention = _attention(read)
    model = model_of(read.first("base_model"), base=read.folder)
    untold = _untold(read, layout)
    sealed = _sealed(read, layout, untold)
    return Setup(
        stack="axolotl",
        versions=versions,
        layout=layout,
        packing=packing,
        told="positions",
        attention=attention,
        model=model,
        capacity=read.number("sequence_len", 512, "sample_packing"),
        overflow=_overflow(read) if layout == "packed" else None,
        rows_per_device=read.number("micro_batch_size", 1),
        neftune=written_number(read, "neftune_noise_alpha", "noisy_embedding_alpha"),
        adapter=read.first("adapter"),
        rope=read.first(
            "overrides_of_model_config.rope_scaling.rope_type",
            "overrides_of_model_config.rope_scaling.type",
            "rope_scaling.type",
        ),
        parallel=_parallel(read),
        router_loss=written_number(read, "router_aux_loss_coef", "overrides_of_model_config.router_aux_loss_coef"),
        mixers_patched=_PATCHED,
        mixers_patched_since=("axolotl", ">=", "0.21"),
        sealed=sealed,
        untold=untold,
        unread=_unread(layout, attention, versions) if sealed is None else (),
        seams=_seams(read, layout) if sealed is None else (),
        per_row=averages_of_devices(read),
        refusals=_refusals(read, layout, attention, model, versions),
        limits=_limits(read, layout, versions),
        remarks=(_SEALED,) if sealed else (),
    )


def _packing(read: Reader) -> Setting:
    packing = read.flag("sample_packing", default=None)
    if packing.written and packing.value is not False:
        return packing
    for name in ("batch_flattening", "pretraining_sample_concatenation"):
        other = read.word(name, None)
        if other.value not in {None, "false"}:
            return other
    return packing


def _layout(packing: Setting) -> Layout:
    if packing.value is UNKNOWN:
        return "unknown"
    if packing.value in {None, False}:
        return "padded"
    return "flattened" if packing.place.key.endswith("batch_flattening") else "packed"


def _attention(read: Reader) -> Attention:
    name = read.word("attn_implementation", None, "sample_packing")
    flag = next((flag for flag in _FLAGS if read.on(flag)), None)
    if name.value is None and flag is not None:
        on = read.settings[flag]
        name = Setting(value=_FLAGS[flag], place=on.place, stands=on.text)
    if isinstance(name.value, str) and name.value.split("@")[0].split(":")[0] in _READ_POSITIONS:
        kind = attention_of(name).kind
        return Attention(kind=kind if kind in {"flash", "flex"} else "flash", setting=name)
    return attention_of(name)


def _overflow(read: Reader) -> Overflow | None:
    if read.first("pretraining_dataset", "pretraining_dataset.0.path") is not None:
        return None  # streamed, and made to fit as its type says
    kinds = [kind.value for kind in _kinds(read)]
    if kinds and all(kind == "completion" for kind in kinds):  # cut at sequence_len before any policy sees them
        return Overflow(policy="split", asked=False, setting=read.number("sequence_len", 512, "sample_packing"))
    written = read.word("excess_length_strategy", "drop", "sequence_len", "sample_packing")
    policies = {"drop": "drop", "truncate": "truncate", "raise": "raise"}
    policy = policies.get(written.value if isinstance(written.value, str) else "", "unknown")
    return Overflow(policy=policy, asked=written.written, setting=written)  # type: ignore[arg-type] # a key of the above


def _sealed(read: Reader, layout: Layout, untold: tuple[Claim, ...]) -> Setting | None:
    """Hermetic's plugin, where there are positions that tell a sealed model its documents."""
    if layout not in {"packed", "flattened"} or untold:
        return None
    named = (one for name, one in read.settings.items() if re.fullmatch(r"plugins(\.\d+)?", name))
    return next((one for one in named if one.value == _PLUGIN), None)


def _untold(read: Reader, layout: Layout) -> tuple[Claim, ...]:
    if layout != "packed":
        return ()
    joined = read.flag("pretraining_sample_concatenation", default=False)
    attention = read.flag("pretrain_multipack_attn", default=True)
    way_out = "Set sample_packing to true, and pretrain_multipack_attn to true"
    if joined.value is True and not read.on("sample_packing"):
        what = "texts are laid end to end under one causal mask, with an end-of-text token between them"
        return (Claim(what=what, setting=joined, way_out=way_out),)
    if attention.value is False and "pretraining_dataset.0.path" in read.settings:
        what = "packed texts of the pretraining data see each other"
        return (Claim(what=what, setting=attention, way_out=way_out),)
    return ()


def _unread(layout: Layout, attention: Attention, versions: Versions) -> tuple[Claim, ...]:
    name = attention.setting
    if layout not in {"packed", "flattened"} or attention.kind in {"flash", "flex", "unknown"}:
        if isinstance(name.value, str) and "/" in name.value and name.value.split("@")[0] not in _READ_POSITIONS:
            return (_undecided(name),)
        return ()
    if not name.written:
        return (
            Claim(
                what="no attention is chosen, so that a mask with numbers of documents reaches transformers, which "
                "takes it for a mask of ones",
                setting=name,
                way_out="Set attn_implementation to flash_attention_2, or to sdpa with Axolotl 0.18 or newer",
            ),
        )
    if attention.kind in {"sdpa", "eager"}:
        claim = Claim(
            what=f"a mask with numbers of documents reaches {name.text}, which takes it for a mask of ones",
            setting=name,
            way_out="Upgrade Axolotl, or set attn_implementation to flash_attention_2",
        )
        return in_versions(claim, versions, ("axolotl", "<", "0.18"))
    return (_undecided(name),)


def _undecided(name: Setting) -> Claim:
    return Claim(
        what=f"{name.text} is not on Axolotl's list of attention that keeps packed documents apart",
        setting=name,
        way_out="Set attn_implementation to flash_attention_2, flex_attention or sdpa",
        certainty="likely",
    )


def _seams(read: Reader, layout: Layout) -> tuple[Claim, ...]:
    if layout != "packed":
        return ()
    found = []
    for setting in _kinds(read):
        if setting.value in ("completion", "pretrain"):
            what = "every token of these texts has a label, even the first of each document, and the collator keeps it"
            way_out = "Set the first label of each document to -100, or add hermetic's plugin, whose loss leaves it out"
            found.append(Claim(what=what, setting=setting, way_out=way_out))
    inputs = read.flag("train_on_inputs", default=False)
    if inputs.value is True and _of_prompts(read):
        what = "prompts have labels, even the first token of each document, and the collator keeps it"
        way_out = "Set train_on_inputs to false, or add hermetic's plugin, whose loss leaves the first token out"
        found.append(Claim(what=what, setting=inputs, way_out=way_out, certainty="likely"))
    return tuple(found)


def _of_prompts(read: Reader) -> bool:
    """A data set whose type makes a prompt of instructions; those of chat templates give labels by turns."""
    kinds = [kind.value for kind in _kinds(read)]
    return any(isinstance(kind, str) and not kind.startswith(("chat_template", "completion")) for kind in kinds)


def _kinds(read: Reader) -> Iterator[Setting]:
    """The types of the data sets, as they were written."""
    return (one for name, one in read.settings.items() if re.fullmatch(r"datasets\.\d+\.type", name))


def _refusals(
    read: Reader, layout: Layout, attention: Attention, model: Model | None, versions: Versions
) -> tuple[Claim, ...]:
    found: tuple[Claim, ...] = ()
    rl = read.word("rl", None)
    if layout == "packed" and rl.value not in {None, UNKNOWN}:
        what = f"Axolotl packs no data for {rl.text}"
        found += (Claim(what=what, setting=rl, way_out="Set sample_packing to false"),)
    split = read.number("context_parallel_size", None)
    if more_than_one(split) and attention.kind == "eager":
        what = "context parallelism has to be of a kernel's attention, and eager has none"
        found += (Claim(what=what, setting=split, way_out="Set attn_implementation to flash_attention_2"),)
    if layout in {"packed", "flattened"} and model is not None and model.type in _REFUSED:
        claim = Claim(
            what=f"Axolotl refuses to pack for {model.type}, whose layers carry state from document to document",
            setting=model.setting,
            way_out="Set sample_packing to false, or seal the model with hermetic",
            certainty="certain" if model.certain else "likely",
        )
        found += in_versions(claim, versions, ("axolotl", ">=", "0.21"))
    return found


def _parallel(read: Reader) -> tuple[Parallel, ...]:
    names = ("context_parallel_size", "sequence_parallel_degree")
    name = next((name for name in names if name in read.settings), names[0])
    size = read.number(name, None)
    if not more_than_one(size):
        return ()
    return (Parallel(kind="ulysses" if read.first("deepspeed") else "ring", size=size),)


def _limits(read: Reader, layout: Layout, versions: Versions) -> tuple[Claim, ...]:
    function = read.word("ring_attn_func", None)
    if layout != "packed" or function.value not in _RING_WITHOUT_EDGES or not _parallel(read):
        return ()
    claim = Claim(
        what=f"{function.value} has no way in for boundaries, so that packed documents see each other",
        setting=function,
        way_out="Set ring_attn_func to varlen_llama3, or leave it out",
    )
    return in_versions(claim, versions, ("axolotl", "<", "0.21"))

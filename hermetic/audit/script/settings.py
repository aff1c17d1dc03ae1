"""What the calls of a script come to as a setup: of TRL's configurations, and of a collator that flattens.

The keyword arguments of ``SFTConfig(...)`` are settings as those of a YAML file are, and go through the same door; the
model's own (``from_pretrained(attn_implementation=...)``) stand beside them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hermetic.audit.script.packing import implementations, packs_by_trl, restarts, rows
from hermetic.audit.script.script import EDGES, Call, Script
from hermetic.audit.setup import UNKNOWN, Attention, Model, Setting, Setup, Versions, number_of_version
from hermetic.audit.stacks import trl
from hermetic.audit.stacks.families import model_of, type_by_name
from hermetic.audit.stacks.reading import Reader, attention_of
from hermetic.audit.stacks.trainer import trainer_facts
from hermetic.errors import AuditError

_TELLING: Final = frozenset(
    {"packing", "packing_strategy", "padding_free", "attn_implementation", "model_init_kwargs", "use_cache"}
)
"""Settings without which nothing can be said of packing."""

_OF_A_CLASS: Final = re.compile(r"\.(?!Auto)(?P<family>[A-Z]\w+?)(ForCausalLM|LMHeadModel)(\._?from_\w+)?$")

_ADAPTERS: Final[Mapping[str, str]] = {
    "LoraConfig": "lora",
    "PrefixTuningConfig": "prefix_tuning",
    "PromptTuningConfig": "prompt_tuning",
    "PromptEncoderConfig": "p_tuning",
    "MultitaskPromptTuningConfig": "multitask_prompt_tuning",
}
"""Configurations of PEFT, and what they are called in a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Setups of a script, and what of its calls could not be read."""

    setups: tuple[Setup, ...]
    notes: tuple[str, ...]


def setups_of(script: Script, versions: Versions) -> Read:
    """Every configuration that is made in a script, as a setup; one that its stack would refuse is a note.

    Raises:
        AuditError: a version is none.
    """
    for version in versions.values():
        number_of_version(version)
    setups: list[Setup] = []
    notes = [*_of_preferences(script), *_unread_models(script)]
    for call in script.named("SFTConfig", of=("trl",)):
        settings, unread = settings_of(call, script)
        notes += unread
        try:
            setups.append(_of_trl({**_of_model(script), **settings}, script, versions))
        except AuditError as error:
            notes.append(str(error))
    try:
        flattened = _flattened(script, versions)
    except AuditError as error:
        notes.append(str(error))
    else:
        setups += [flattened] if flattened else []
    return Read(setups=tuple(setups), notes=tuple(dict.fromkeys(notes)))


def _of_preferences(script: Script) -> Iterator[str]:
    """On ``DPOConfig``, which packs nothing, and whose ``padding_free`` says less than it seems to."""
    for call in script.named("DPOConfig", of=("trl",)):
        node = call.keywords.get("padding_free")
        if node is not None and script.value(node) is not False:
            place = script.source.place(node, "DPOConfig(padding_free)")
            yield (
                f"{place} has no effect in TRL 1.16, which warns and pads; releases in which it has one need "
                "FlashAttention to keep answers apart."
            )


def _of_trl(settings: dict[str, Setting], script: Script, versions: Versions) -> Setup:
    adapter = _adapter(script)
    return trl.setup_of({**settings, **({"peft_type": adapter} if adapter else {})}, versions=versions)


def settings_of(call: Call, script: Script) -> tuple[dict[str, Setting], list[str]]:
    """Keyword arguments as settings, nested ones with dots, and notes on those that cannot be read."""
    settings: dict[str, Setting] = {}
    notes = []
    for spread in call.spread:
        values = script.value(spread)
        if isinstance(values, dict):
            settings |= dict(_flat(values, call, script, spread))
        else:
            notes.append(_note(script, spread, f"{call.short}(**...)"))
            settings |= {key: _setting(UNKNOWN, call, script, spread, key) for key in ("packing", "padding_free")}
    for word in call.node.keywords:
        if word.arg is None:
            continue
        value = script.value(word.value)
        if value is UNKNOWN and word.arg in _TELLING:
            notes.append(_note(script, word, f"{call.short}({word.arg})"))
        settings |= dict(_flat({word.arg: value}, call, script, word))
    return settings | dict(_set_later(call, script)), notes


def _flat(values: Mapping[Any, Any], call: Call, script: Script, node: ast.AST) -> Iterator[tuple[str, Setting]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat({f"{key}.{inner}": one for inner, one in value.items()}, call, script, node)
        else:
            yield str(key), _setting(_plain(value), call, script, node, str(key))


def _plain(value: Any) -> Any:
    """Only values of a configuration file are settings; of a list with unknown parts nothing is known."""
    known = value is None or isinstance(value, (bool, int, float, str))
    return value if known or (isinstance(value, list) and all(_plain(one) is not UNKNOWN for one in value)) else UNKNOWN


def _setting(value: Any, call: Call, script: Script, node: ast.AST, key: str) -> Setting:
    return Setting(value=value, place=script.source.place(node, f"{call.short}({key})"))


def _set_later(call: Call, script: Script) -> Iterator[tuple[str, Setting]]:
    """``config.packing = True`` after ``config = SFTConfig(...)``; what is set twice or in a branch is not known."""
    parent = script.names.parents.get(call.node)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return
    name = parent.targets[0].id
    here = script.names.bindings.get(script.names.scope_of(parent), {})
    for spotted, found in here.items():
        if not spotted.startswith(f"{name}.") or not spotted[len(name) + 1 :].isidentifier():
            continue
        key, last = spotted[len(name) + 1 :], found[-1]
        straight = len(found) == 1 and script.names.parents.get(last.node) is script.names.parents.get(parent)
        value = script.value(last.value) if straight and last.kind == "assign" else UNKNOWN
        yield key, _setting(value, call, script, last.node, key)


def _of_model(script: Script) -> dict[str, Setting]:
    """The name and the attention of the one model that is loaded."""
    loads = [
        call
        for call in script.calls
        if (
            call.name.startswith(("transformers", "unsloth", "liger_kernel"))
            and call.name.endswith("Model.from_pretrained")
        )
        or ("ForCausalLM" in call.name and call.name.endswith("from_pretrained"))
    ]
    if len(loads) != 1:
        return {}
    (call,) = loads
    settings, _ = settings_of(call, script)
    kept = {key: settings[key] for key in ("attn_implementation",) if key in settings}
    name = call.node.args[0] if call.node.args else call.keywords.get("pretrained_model_name_or_path")
    if name is not None and isinstance(script.value(name), str):
        kept["model_name_or_path"] = _setting(script.value(name), call, script, name, "model")
    return kept


def _flattened(script: Script, versions: Versions) -> Setup | None:
    """A setup of what lays documents end to end and tells a model by positions, in a Trainer or in a loop."""
    told = _told_by_positions(script)
    if told is None or packs_by_trl(script):
        return None
    node, key, edges = told
    settings = _of_model(script)
    for call in script.named("TrainingArguments", of=("transformers",)):
        settings = {**settings, **settings_of(call, script)[0]}
    read = Reader(settings, "transformers")
    return Setup(
        stack="trl",
        versions=versions,
        layout="flattened",
        packing=Setting(value=True, place=script.source.place(node, key)),
        told="edges" if edges else "positions",
        attention=_attention(read),
        model=model_of(read.first("model_name_or_path")) or _model_of_class(script),
        adapter=_adapter(script),
        **trainer_facts(read),
    )


def _told_by_positions(script: Script) -> tuple[ast.AST, str, bool] | None:
    """The one place that packs, and whether it gives edges beside positions."""
    collators = list(script.named("DataCollatorWithFlattening", of=("transformers",)))
    if len(collators) == 1:
        given = [collators[0].keywords.get(key) for key in ("return_flash_attn_kwargs", "return_seq_idx")]
        return collators[0].node, collators[0].short, any(script.value(one) is True for one in given)
    own = [row for row in rows(script) if row.slot is not None]
    if collators or len(own) != 1 or own[0].slot is None:
        return None
    beside = [slot for slot in script.beside(own[0].slot, "position_ids") if restarts(slot.value, script.names)]
    return (beside[0].node, "position_ids", any(True for _ in script.beside(beside[0], *EDGES))) if beside else None


def _model_of_class(script: Script) -> Model | None:
    """The type of the one model that is made from its own class, as ``BambaForCausalLM(config)``."""
    made = [call for call in script.calls if call.name.startswith("transformers") and _OF_A_CLASS.search(call.name)]
    if len(made) != 1:
        return None
    name = _OF_A_CLASS.search(made[0].name)
    assert name is not None  # noqa: S101 - the condition
    found = type_by_name(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name["family"]).lower())
    if found is None or found.replace("_", "") != name["family"].lower():
        return None
    place = script.source.place(made[0].node, made[0].short)
    return Model(type=found, certain=True, setting=Setting(value=name["family"], place=place))


def _attention(read: Reader) -> Attention:
    return attention_of(read.word("attn_implementation", None))


def _adapter(script: Script) -> Setting | None:
    """The one adapter of PEFT that is configured."""
    calls = list(script.named(*_ADAPTERS, of=("peft",)))
    if len(calls) != 1:
        return None
    return Setting(value=_ADAPTERS[calls[0].short], place=script.source.place(calls[0].node, calls[0].short))


def _unread_models(script: Script) -> Iterator[str]:
    if any(not isinstance(one, str) for one in implementations(script)):
        for call in script.calls:
            node = call.keywords.get("attn_implementation")
            if node is not None and script.value(node) is UNKNOWN:
                yield _note(script, node, f"{call.short}(attn_implementation)")


def _note(script: Script, node: ast.AST, key: str) -> str:
    return f"{script.source.place(node, key)} cannot be read without running the script."


def drops_isolation(setup_code: str) -> bool:
    """Whether a finding of this code is one that a sealed model takes away."""
    return setup_code.startswith(("HM1", "HM3"))

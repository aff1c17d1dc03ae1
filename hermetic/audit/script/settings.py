"""What the calls of a script come to as a setup: of TRL's configurations, and of a collator that flattens.

The keyword arguments of ``SFTConfig(...)`` are settings as those of a YAML file are, and go through the same door; the
model's own (``from_pretrained(attn_implementation=...)``) stand beside them.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hermetic.audit.script.packing import implementations, packs_by_trl
from hermetic.audit.script.script import Call, Script
from hermetic.audit.setup import UNKNOWN, Attention, Setting, Setup, Versions
from hermetic.audit.stacks import trl
from hermetic.audit.stacks.families import model_of
from hermetic.audit.stacks.reading import Reader, attention_of
from hermetic.audit.stacks.trainer import trainer_facts

_OF_TRL: Final = ("SFTConfig",)
_TELLING: Final = frozenset(
    {"packing", "packing_strategy", "padding_free", "attn_implementation", "model_init_kwargs", "use_cache"}
)
"""Settings without which nothing can be said of packing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Setups of a script, and what of its calls could not be read."""

    setups: tuple[Setup, ...]
    notes: tuple[str, ...]


def setups_of(script: Script, versions: Versions) -> Read:
    """Every configuration that is made in a script, as a setup."""
    setups, notes = [], []
    for call in script.named(*_OF_TRL, of=("trl",)):
        settings, unread = settings_of(call, script)
        notes += unread
        setups.append(trl.setup_of({**_of_model(script), **settings}, versions=versions))
    flattened = _flattened(script, versions)
    notes += _unread_models(script)
    return Read(setups=(*setups, *([flattened] if flattened else [])), notes=tuple(dict.fromkeys(notes)))


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
    for key, node in call.keywords.items():
        value = script.value(node)
        if value is UNKNOWN and key in _TELLING:
            notes.append(_note(script, node, f"{call.short}({key})"))
        settings |= dict(_flat({key: value}, call, script, node))
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
    """A setup of transformers' own flattening collator, in a Trainer or in a loop."""
    collators = list(script.named("DataCollatorWithFlattening", of=("transformers",)))
    if len(collators) != 1 or packs_by_trl(script):
        return None
    (collator,) = collators
    settings = _of_model(script)
    for call in script.named("TrainingArguments", of=("transformers",)):
        settings = {**settings, **settings_of(call, script)[0]}
    read = Reader(settings, "transformers")
    edges = any(
        script.value(collator.keywords.get(key)) is True for key in ("return_flash_attn_kwargs", "return_seq_idx")
    )
    return Setup(
        stack="trl",
        versions=versions,
        layout="flattened",
        packing=Setting(value=True, place=script.source.place(collator.node, "DataCollatorWithFlattening")),
        told="edges" if edges else "positions",
        attention=_attention(read),
        model=model_of(read.first("model_name_or_path")),
        adapter=_adapter(script),
        **trainer_facts(read),
    )


def _attention(read: Reader) -> Attention:
    return attention_of(read.word("attn_implementation", None))


def _adapter(script: Script) -> Setting | None:
    for call in script.named("LoraConfig", of=("peft",)):
        return Setting(value="LORA", place=script.source.place(call.node, call.short))
    return None


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

"""Types of models, and what was measured of them: whether documents stay apart in a model as it is shipped.

Algorithm: the type is read from a local folder's ``config.json``, or taken from the name of a model on a hub, whose
beginning is compared with all known types. Guarantee: the table is generated from ``docs/atlas.md`` by
``scripts/families_table.py`` and names the version of transformers that was measured. A name finds a type only where
the name begins with it, or is one of a few that are kept by hand, so an unknown name is unknown.
Price: a file of 25 KB, read once.
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hermetic.audit.setup import UNKNOWN, Model, Setting

_TABLE: Final = Path(__file__).with_name("families.json")
_LARGEST: Final = 2**20
_BY_LENGTH: Final = {"dynamic", "longrope", "su"}
"""Scalings of rotary positions that look at the longest position in the row."""
_OTHER_NAMES: Final = {
    "granite40h": "granitemoehybrid",
    "ai21jamba": "jamba",
    "bloomz": "bloom",
    "nvidianemotronnano9bv2": "nemotron_h",
    "nvidianemotronnano12bv2": "nemotron_h",
    "nvidianemotron3": "nemotron_h",
}
"""How hubs call models of types that were found not to be sound, where the name does not begin with the type."""
_BETWEEN: Final = re.compile(r"[-_. ]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the atlas says of one type in one attention implementation."""

    verdict: Literal["ok", "leak", "distortion", "row length"]
    transformers: str
    """The version that was measured."""
    size: float | None = None
    """How far a logit moves at most, of about 10."""
    module: str | None = None
    """The class of the first module that carries one document into another."""

    @property
    def by_state(self) -> bool:
        """It is a recurrence or a convolution that carries it, and not attention that ignores positions."""
        name = self.module or ""
        return not name.endswith("Attention") or "Delta" in name or "Lightning" in name


@functools.cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def measured(model_type: str, attention: str) -> Measured | None:
    """What was measured of a type; with another attention than those of PyTorch, only recurrent layers count.

    Args:
        model_type: as transformers names it.
        attention: ``sdpa``, ``eager``, ``flex`` or ``flash``.

    Example:
        >>> measured("opt", "sdpa").verdict
        'leak'
        >>> measured("opt", "flash") is None  # was not measured
        True
    """
    entries = _table()["types"].get(model_type, {})
    entry = entries.get(attention) or next(iter(entries.values()), None)
    if entry is None:
        return None
    result = Measured(transformers=_table()["transformers"], **entry)
    beyond = attention not in {"sdpa", "eager", "flex"}
    return None if beyond and not (result.verdict == "leak" and result.by_state) else result


def model_of(name: Setting | None, *, base: Path | None = None) -> Model | None:
    """The model of a name or a local folder.

    Args:
        name: the setting that names it.
        base: the folder that paths are relative to.
    """
    if name is None or name.value is UNKNOWN or not isinstance(name.value, str):
        return None
    config = _config(name.value, base)
    if config is not None and isinstance(config.get("model_type"), str):
        return Model(type=config["model_type"], certain=True, setting=name, rope=_rope(config))
    guessed = type_by_name(name.value)
    return Model(type=guessed, certain=False, setting=name) if guessed else None


def _config(name: str, base: Path | None) -> Mapping[str, Any] | None:
    folders = (Path(name), *([base / name] if base else []))
    return next(filter(None, (_config_of(folder) for folder in folders)), None)


def _config_of(folder: Path) -> Mapping[str, Any] | None:
    try:
        file = folder / "config.json"
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # a folder that transformers cannot read either is not known here
    return config if isinstance(config, dict) else None


def _rope(config: Mapping[str, Any]) -> str | None:
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.get(key)
        if isinstance(scaling, dict):
            kind = scaling.get("rope_type", scaling.get("type"))
            return kind if kind in _BY_LENGTH else None
    return None


def scales_by_length(scaling: object) -> bool:
    """Whether a scaling of rotary positions looks at the longest position in the row."""
    return isinstance(scaling, str) and scaling.lower() in _BY_LENGTH


def type_by_name(name: str) -> str | None:
    """The type that a model's name begins with; the longest, if there are several.

    Example:
        >>> type_by_name("openai/gpt-oss-20b"), type_by_name("Qwen/Qwen3-57B"), type_by_name("Qwen/Qwen3.5-7B")
        ('gpt_oss', 'qwen3', 'qwen3_5')
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    known = _types_by_name()
    beginnings = itertools.accumulate(_BETWEEN.split(last))
    return max((known[one] for one in beginnings if one in known), key=len, default=None)


@functools.cache
def _types_by_name() -> Mapping[str, str]:
    """Types by their letters and numbers, whatever stands between them."""
    return {_BETWEEN.sub("", known): known for known in _table()["types"]} | _OTHER_NAMES

"""Settings with their types: what a stack's own parser makes of a value, and the stack's default where there is none.

Guarantee: a value that the stack could not take is an :class:`~hermetic.errors.AuditError` that names its place; one
that is not known before it runs stays :data:`~hermetic.audit.setup.UNKNOWN`.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hermetic.audit.finding import Place
from hermetic.audit.setup import OTHERS, UNKNOWN, Attention, AttentionKind, Claim, Setting, Settings
from hermetic.errors import AuditError

_YES: Final = {"true", "yes", "y", "t", "1", "on"}
_NO: Final = {"false", "no", "n", "f", "0", "off"}
_TEMPLATE: Final = re.compile(r"\$\{|\{\{|\{%|^\$[A-Za-z_]\w*$")
_NOTHING: Final = {"none", "null", ""}


class Reader:
    """The settings of one stack, read by name."""

    def __init__(self, settings: Settings, stack: str, *, truthy_text: bool = False) -> None:
        """Read settings.

        Args:
            settings: by name.
            stack: for messages.
            truthy_text: this stack does not convert text, so any text that is not empty counts as true.
        """
        self.settings = settings
        self.stack = stack
        self.truthy_text = truthy_text
        self.misread: list[Claim] = []

    def first(self, *names: str) -> Setting | None:
        """The first of these that was written."""
        return next((self.settings[name] for name in names if name in self.settings), None)

    def default(self, value: Any, *names: str) -> Setting:
        """A default, and the nearest place there is: that of the first of these names that was written.

        Where not all settings were read, it is not known whether the default holds.
        """
        value = UNKNOWN if OTHERS in self.settings else value
        near = self.first(*names[1:])
        place = Place(key=names[0], file=self._file()) if near is None else replace(near.place, key=names[0])
        return Setting(value=value, place=place, written=False)

    def _written(self, name: str) -> Setting | None:
        """A setting; ``${...}`` and ``{{ ... }}`` in its text are put in when it runs, or before."""
        setting = self.settings.get(name)
        if setting is not None and isinstance(setting.value, str) and _TEMPLATE.search(setting.value):
            return replace(setting, value=UNKNOWN)
        return setting

    def flag(self, name: str, *near: str, default: bool | None) -> Setting:
        """True, false, nothing, or not known."""
        setting = self._written(name)
        if setting is None:
            return self.default(default, name, *near)
        return Setting(value=self._truth(setting), place=setting.place)

    def on(self, name: str) -> bool:
        """Whether a flag is known to be set."""
        return self.flag(name, default=False).value is True

    def number(self, name: str, default: float | None, *near: str) -> Setting:
        """A number, nothing, or not known."""
        setting = self._written(name)
        if setting is None:
            return self.default(default, name, *near)
        return Setting(value=self._number(setting), place=setting.place)

    def word(self, name: str, default: str | None, *near: str) -> Setting:
        """A text, nothing, or not known."""
        setting = self._written(name)
        if setting is None:
            return self.default(default, name, *near)
        value = setting.value
        if value is UNKNOWN or value is None or isinstance(value, str):
            text = None if isinstance(value, str) and value.lower() in _NOTHING else value
            return Setting(value=text, place=setting.place)
        if isinstance(value, (bool, int, float)):
            return Setting(value=str(value).lower(), place=setting.place)
        raise self._wrong(setting, "a text")

    def _truth(self, setting: Setting) -> Any:
        value = setting.value
        if value is UNKNOWN or value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return bool(value)
        if isinstance(value, str):
            return self._truth_of_text(value, setting)
        raise self._wrong(setting, "true or false")

    def _truth_of_text(self, text: str, setting: Setting) -> bool | None:
        meant = text.strip().lower()
        if self.truthy_text and meant in _YES | _NO | _NOTHING:
            self._note_text(setting, meant)
            return bool(text)
        if meant in _NOTHING:
            return None
        if meant in _YES | _NO:
            return meant in _YES
        raise self._wrong(setting, "true or false")

    def _note_text(self, setting: Setting, meant: str) -> None:
        if (meant in _YES) != bool(setting.value):
            claim = Claim(
                what=f"{setting.place.key} is the text {setting.value!r}, which {self.stack} takes for true",
                setting=setting,
                way_out="Write true or false without quotes",
            )
            self.misread += [] if claim in self.misread else [claim]

    def _number(self, setting: Setting) -> Any:
        value = setting.value
        if value is UNKNOWN or value is None:
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
        if isinstance(value, str):
            if value.strip().lower() in _NOTHING:
                return None
            return self._number_of_text(value, setting)
        raise self._wrong(setting, "a number")

    def _number_of_text(self, text: str, setting: Setting) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self._wrong(setting, "a number") from None
        if not math.isfinite(number):
            raise self._wrong(setting, "a number")
        return int(number) if number.is_integer() else number

    def _wrong(self, setting: Setting, expected: str) -> AuditError:
        shown = repr(setting.value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return AuditError(f"{setting.place} is {shown}; {self.stack} expects {expected} there. Correct it")

    @property
    def folder(self) -> Path | None:
        """Of the file that was read, which paths may be relative to."""
        file = self._file()
        return Path(file).parent if file else None

    def _file(self) -> str | None:
        return next((setting.place.file for setting in self.settings.values()), None)


def more_than_one(size: Setting | None) -> bool:
    """A degree of parallelism that splits anything."""
    return size is not None and isinstance(size.value, (int, float)) and size.value > 1


_KINDS: Final[dict[str, AttentionKind]] = {
    "sdpa": "sdpa",
    "eager": "eager",
    "flex_attention": "flex",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention_4": "flash",
}


def attention_of(name: Setting) -> Attention:
    """The attention that transformers runs under this name; without one it takes ``sdpa``."""
    value = name.value
    if value is UNKNOWN:
        return Attention(kind="unknown", setting=name)
    if value is None:
        setting = Setting(value="sdpa", place=name.place, written=False)
        return Attention(kind="sdpa", setting=setting)
    base = value.split("@")[0].split(":")[0].removeprefix("paged|").strip()
    flash = "/" in base and any(part in base.lower() for part in ("flash-attn", "flash_attn", "flash-attention"))
    return Attention(kind="flash" if flash else _KINDS.get(base, "other"), setting=name)

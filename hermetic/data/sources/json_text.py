"""One JSON object out of bytes, strictly.

Guarantee: what comes back is exactly what the text says, or an error says which byte or character it fails at. Refused
are, beside malformed text, what Python's own reader passes over in silence: a key that occurs twice (the second would
win), NaN, Infinity and numbers that overflow to it, and nesting that is parsed or not depending on how deep the
caller's own stack is. Price: a Python call for each object and each number with a fraction.
"""

import codecs
import json
import math
import re
import sys
from typing import Any, Final, Literal, NoReturn

import numpy as np

from hermetic.data.sources.scan import deepest
from hermetic.errors import SourceError

__all__ = ["MAX_DEPTH", "completeness", "parse_object", "parse_value"]

MAX_DEPTH: Final = 128
"""Brackets and braces open at once; far below where Python's reader runs out of stack, wherever it is called."""

_SNIPPET_CHARACTERS: Final = 20
"""Characters shown on each side of the place where a text stops being JSON."""

_UNFINISHED: Final = re.compile(
    r"\s*|\.|[eE][+-]?|-|t(ru?)?|f(a(ls?)?)?|n(ul?)?|N(a)?|-?I(n(f(i(n(it?)?)?)?)?)?|\\?u?[0-9a-fA-F]{0,4}"
)
"""What a reader objects to where a text was cut off: the beginning of a token, or nothing."""


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """What a text says is not taken; carries a phrase and a reason."""


def parse_object(raw: bytes, place: str, *, what: str) -> dict[str, Any]:
    """Parse the bytes of one record.

    Args:
        raw: UTF-8 text of one JSON object, white space around it allowed.
        place: file and number, for messages.
        what: what ``raw`` is in its file, for messages: "line" or "element".

    Raises:
        SourceError: If it is anything else; ``reason`` says what.
    """
    value = parse_value(raw, place, what=what)
    if not isinstance(value, dict):
        raise SourceError(
            f"{place}: the {what} holds a JSON {type(value).__name__}, expected an object; "
            f'write one object such as {{"text": ...}} for each record; a file that is one list has to end in .json',
            reason="not_an_object",
        )
    return value


def parse_value(raw: bytes, place: str, *, what: str) -> Any:
    """Parse the bytes of one JSON value, whatever it is; arguments and errors as of :func:`parse_object`."""
    _refuse_depth(raw, place, what)
    try:
        text = raw.decode("utf-8")
        return _STRICT.decode(text)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place}: byte {error.start + 1} of the {what} is not UTF-8 ({error.reason}); save the file as UTF-8",
            reason="not_utf8",
        ) from error
    except json.JSONDecodeError as error:
        _refuse_nul(raw, place, what)
        near = text[max(0, error.pos - _SNIPPET_CHARACTERS) : error.pos + _SNIPPET_CHARACTERS].strip()
        raise SourceError(
            f"{place}: malformed JSON, {error.msg.removesuffix(' at')} at character {error.pos + 1} of the {what}, "
            f"near {near!r}; expected one complete JSON object; repair or remove the {what}"
        ) from error
    except _Refused as error:
        phrase, reason = error.args
        raise SourceError(f"{place}: {phrase}", reason=reason) from error
    except ValueError as error:  # Python reads no whole number of thousands of digits
        _name_long_number(text, place, error)


def _refuse_depth(raw: bytes, place: str, what: str) -> None:
    if raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return
    depth = int(deepest(np.frombuffer(raw, np.uint8)))
    if depth > MAX_DEPTH:
        raise SourceError(
            f"{place}: the {what} is nested {depth} deep, expected at most {MAX_DEPTH}; flatten the record",
            reason="too_deep",
        )


def _refuse_nul(raw: bytes, place: str, what: str) -> None:
    where = raw.find(b"\0")
    if where >= 0:
        raise SourceError(
            f"{place}: byte {where + 1} of the {what} is NUL, expected text; the file was damaged, as by a full disk "
            "or a power failure, or is not UTF-8; write it anew",
            reason="nul_bytes",
        )


def _name_long_number(text: str, place: str, cause: ValueError) -> NoReturn:
    """Parse again to find the number, which Python's own error does not name."""
    try:
        _LONG_NUMBERS.decode(text)
    except _Refused as error:
        phrase, reason = error.args
        raise SourceError(f"{place}: {phrase}", reason=reason) from cause
    raise cause


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(
            f"the key {twice!r} occurs twice in one object, where only the second value would count; "
            "expected each key once; remove one",
            "duplicate_key",
        )
    return values


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not JSON; expected a finite number or null; replace it", "not_finite")


def _fraction(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused(
            f"the number {_shortened(text)} overflows to infinity; expected one that a double holds; replace it",
            "not_finite",
        )
    return value


def _whole(text: str) -> int:
    digits = len(text.lstrip("-"))
    if digits > sys.get_int_max_str_digits() > 0:
        raise _Refused(
            f"the whole number {_shortened(text)} has {digits} digits, expected at most "
            f"{sys.get_int_max_str_digits()}; write it as a string",
            "number_too_long",
        )
    return 0


def _shortened(text: str) -> str:
    return text if len(text) <= _SNIPPET_CHARACTERS else f"{text[:_SNIPPET_CHARACTERS]}..."


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_fraction)
_LONG_NUMBERS: Final = json.JSONDecoder(parse_int=_whole)
_SHAPE_ONLY: Final = json.JSONDecoder(parse_int=len)


def completeness(raw: bytes) -> Literal["whole", "cut off", "malformed"]:
    """Tell the beginning of a longer JSON value, with which nothing is wrong but its end, from one that is malformed.

    Example:
        ``b'{"a": 1}'`` is whole, ``b'{"a": tr'`` is cut off, ``b'{"a": 1]'`` is malformed.
    """
    if int(deepest(np.frombuffer(raw, np.uint8))) > MAX_DEPTH:
        return "malformed"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # half a character at the end is left out
        _SHAPE_ONLY.decode(text)
    except UnicodeDecodeError:
        return "malformed"
    except json.JSONDecodeError as error:
        unfinished = error.msg.startswith("Unterminated string") or _UNFINISHED.fullmatch(text[error.pos :])
        return "cut off" if unfinished else "malformed"
    return "whole"

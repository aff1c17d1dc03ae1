"""Checks that several shapes share; each raises a :class:`RecordError` with a reason to count by.

Guarantee: a text that passes can be tokenized: it is a string of whole Unicode characters. A NUL character is
one of them and passes. Price: one pass over the text.
"""

import reprlib
from typing import Any

from hermetic.errors import RecordError

__all__ = ["check_list", "check_not_empty", "check_text", "check_unicode", "kind_of", "shown"]

_KINDS = {str: "a string", list: "a list", dict: "an object", bool: "a bool", int: "an int", type(None): "null"}


def kind_of(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def shown(value: Any) -> str:
    """A value for messages, shortened where it is long."""
    return reprlib.repr(value)


def check_text(what: str, value: Any) -> None:
    """Check that ``value`` is a string that can be encoded."""
    if not isinstance(value, str):
        raise RecordError(
            f"{what} is {kind_of(value)}, expected a string; write it as plain text", reason="not_a_string"
        )
    check_unicode(what, value)


def check_unicode(what: str, text: str) -> None:
    """Check that ``text`` has no half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{what} holds half of a surrogate pair, {text[error.start]!r}, at character {error.start}, expected "
            "valid Unicode; repair the escape sequence",
            reason="not_unicode",
        ) from error


def check_list(what: str, value: Any, of: str) -> None:
    """Check that ``value`` is a list."""
    if not isinstance(value, list):
        raise RecordError(f"{what} is {kind_of(value)}, expected a list of {of}", reason="not_a_list")


def check_not_empty(what: str, value: str | list[Any]) -> None:
    """Check that there is something to make tokens of."""
    if not value:
        raise RecordError(
            f"{what} is empty, expected a document with at least one token; remove the record", reason="empty"
        )

"""A record's shape, decided by its keys and checked before anything is tokenized.

Four shapes are known, and a record has exactly one:

    messages              a conversation, [{"role": ..., "content": ...}, ...], optionally with ``tools``
    prompt, completion    two texts
    text                  one text
    input_ids             token ids, optionally with ``labels`` (unshifted) or ``loss_mask``

Guarantee: what comes out of :func:`parse_record` can be tokenized; what cannot is a :class:`RecordError` that
names file, line, offender and way out. Other keys of a record are ignored, except those that show a row which
is already packed or padded: taken for one document, it would leak by construction. Keys whose value is null
count as absent, for Parquet gives every row every column. Price: one pass over each record.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.data.sources import SourceRecord
from hermetic.errors import RecordError

__all__ = ["ROLES", "ChatRecord", "PairRecord", "Record", "TextRecord", "TokenRecord", "parse_record"]

TokenArray: TypeAlias = npt.NDArray[np.int32]

ROLES: Final = ("system", "user", "assistant", "tool")
_ROW_KEYS: Final = ("seq_lengths", "position_ids", "cu_seqlens", "document_ids", "attention_mask")
_KNOWN_SHAPES: Final = "messages | prompt and completion | text | input_ids, optionally with labels or loss_mask"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRecord:
    """A conversation with at least one assistant turn."""

    where: str
    messages: list[dict[str, Any]]
    tools: list[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRecord:
    """A prompt, which is not supervised, and its completion, which is."""

    where: str
    prompt: str
    completion: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecord:
    """One text, all of it supervised."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """Tokens and labels as they were given, both ``[T]`` int32."""

    where: str
    input_ids: TokenArray
    labels: TokenArray


Record: TypeAlias = ChatRecord | PairRecord | TextRecord | TokenRecord


def parse_record(record: SourceRecord, *, vocabulary: int) -> Record:
    """Check a record and give it the type of its shape.

    Args:
        record: as it stands in its file.
        vocabulary: number of token ids of the tokenizer; given ids have to be below it.

    Raises:
        RecordError: If the record has no known shape, or more than one, or does not keep to it.
    """
    values = {key: value for key, value in record.values.items() if value is not None}
    shape_keys = frozenset(values) & _SHAPE_KEYS
    if shape_keys >= {"labels", "loss_mask"}:
        raise RecordError(
            f"{record.where}: the record has both 'labels' and 'loss_mask', expected one of them; remove the other"
        )
    if shape_keys not in _PARSERS:
        raise RecordError(
            f"{record.where}: the keys {sorted(values)} are not exactly one known shape; expected "
            f"{_KNOWN_SHAPES}; rename or remove keys"
        )
    return _PARSERS[shape_keys](record.where, values, vocabulary)


def _parse_chat(where: str, values: dict[str, Any], vocabulary: int) -> ChatRecord:
    del vocabulary
    messages = values["messages"]
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else f"a {type(messages).__name__}"
        raise RecordError(f"{where}: 'messages' is {found}, expected a list of at least one message; remove the record")
    for index, message in enumerate(messages):
        _check_message(f"{where}: message {index}", message)
    if all(message["role"] != "assistant" for message in messages):
        raise RecordError(
            f"{where}: the conversation has no assistant turn among its {len(messages)} messages, expected "
            "one or more, for nothing else is supervised; remove the record"
        )
    return ChatRecord(where=where, messages=messages, tools=values.get("tools"))


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise RecordError(f"{where} is a {type(message).__name__}, expected an object with 'role' and 'content'")
    role = message.get("role")
    if role not in ROLES:
        raise RecordError(f"{where} has the unknown role {role!r}, expected one of {', '.join(ROLES)}; rename the role")
    if message.get("content") is None and message.get("tool_calls"):
        return
    _check_text(f"{where} ({role}): 'content'", message.get("content"))


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RecordError(f"{what} is a {type(value).__name__}, expected a string; write it as plain text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{what} holds half of a surrogate pair at character {error.start}, expected valid Unicode; "
            "repair the escape sequence"
        ) from error


def _parse_pair(where: str, values: dict[str, Any], vocabulary: int) -> PairRecord:
    del vocabulary
    for key in ("prompt", "completion"):
        _check_text(f"{where}: {key!r}", values[key])
    _check_not_empty(where, "completion", values["completion"])
    return PairRecord(where=where, prompt=values["prompt"], completion=values["completion"])


def _parse_text(where: str, values: dict[str, Any], vocabulary: int) -> TextRecord:
    del vocabulary
    _check_text(f"{where}: 'text'", values["text"])
    _check_not_empty(where, "text", values["text"])
    return TextRecord(where=where, text=values["text"])


def _check_not_empty(where: str, key: str, value: str | list[Any]) -> None:
    if not value:
        raise RecordError(f"{where}: {key!r} is empty, expected a document with at least one token; remove the record")


def _parse_tokens(where: str, values: dict[str, Any], vocabulary: int) -> TokenRecord:
    present = [key for key in _ROW_KEYS if key in values and not _is_all_ones(key, values[key])]
    if present:
        raise RecordError(
            f"{where}: {present[0]!r} beside 'input_ids' shows a row that is already packed or padded, "
            "expected one unpadded document a record; give the documents themselves"
        )
    ids = _integers(where, "input_ids", values["input_ids"])
    _check_not_empty(where, "input_ids", ids)
    _check_range(where, "input_ids", ids, vocabulary, allowed=())
    input_ids = np.array(ids, dtype=np.int32)
    return TokenRecord(where=where, input_ids=input_ids, labels=_labels(where, values, input_ids, vocabulary))


def _is_all_ones(key: str, value: Any) -> bool:
    """An attention mask that masks nothing says nothing about padding."""
    return key == "attention_mask" and isinstance(value, list) and all(entry == 1 for entry in value)


def _labels(where: str, values: dict[str, Any], input_ids: TokenArray, vocabulary: int) -> TokenArray:
    if "labels" in values:
        labels = _integers(where, "labels", values["labels"])
        _check_same_length(where, "labels", labels, len(input_ids))
        _check_range(where, "labels", labels, vocabulary, allowed=(IGNORE_INDEX,))
        return np.array(labels, dtype=np.int32)
    if "loss_mask" in values:
        mask = _integers(where, "loss_mask", values["loss_mask"])
        _check_same_length(where, "loss_mask", mask, len(input_ids))
        _check_range(where, "loss_mask", mask, 2, allowed=())
        return np.where(np.array(mask) == 1, input_ids, np.int32(IGNORE_INDEX))
    return input_ids.copy()


def _integers(where: str, key: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise RecordError(f"{where}: {key!r} is a {type(value).__name__}, expected a list of integers")
    accepted = {int, bool} if key == "loss_mask" else {int}
    if set(map(type, value)) <= accepted:
        return value
    index, wrong = next((index, entry) for index, entry in enumerate(value) if type(entry) not in accepted)
    raise RecordError(
        f"{where}: {key}[{index}] is {wrong!r}, a {type(wrong).__name__}, expected an integer; "
        "write token ids as whole numbers"
    )


def _check_same_length(where: str, key: str, values: list[int], tokens: int) -> None:
    if len(values) != tokens:
        raise RecordError(
            f"{where}: {key!r} has {len(values)} entries for {tokens} input_ids, expected as many; "
            f"{key} stand unshifted, one for each token"
        )


def _check_range(where: str, key: str, values: list[int], bound: int, *, allowed: Iterable[int]) -> None:
    if min(values) >= 0 and max(values) < bound:
        return
    wrong = next((index for index, value in enumerate(values) if not 0 <= value < bound and value not in allowed), None)
    if wrong is not None:
        besides = "".join(f" or {value}" for value in allowed)
        raise RecordError(
            f"{where}: {key}[{wrong}] is {values[wrong]}, expected 0 to {bound - 1}{besides}; "
            "check which tokenizer wrote the record"
        )


_PARSERS: Final[dict[frozenset[str], Callable[[str, dict[str, Any], int], Record]]] = {
    frozenset({"messages"}): _parse_chat,
    frozenset({"prompt", "completion"}): _parse_pair,
    frozenset({"text"}): _parse_text,
    frozenset({"input_ids"}): _parse_tokens,
    frozenset({"input_ids", "labels"}): _parse_tokens,
    frozenset({"input_ids", "loss_mask"}): _parse_tokens,
}
_SHAPE_KEYS: Final = frozenset().union(*_PARSERS)

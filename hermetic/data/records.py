"""A record's shape, decided by its keys and checked before anything is tokenized.

A record has exactly one of these shapes:

    messages                   a conversation, [{"role": ..., "content": ...}, ...], perhaps with ``tools``
    conversations              ShareGPT: turns with ``from`` and ``value``, perhaps ``system`` and ``tools``
    instruction, output        Alpaca: perhaps with ``input``, ``system`` and ``history``
    prompt, completion         two texts, or two lists of messages
    chosen, rejected           a preference pair of texts or messages, perhaps with ``prompt``
    text                       one text
    input_ids                  token ids, perhaps with ``labels`` (unshifted) or ``loss_mask``

Guarantee: what comes out of :func:`parse_record` can be tokenized; what cannot is a :class:`RecordError` that
names file, line, offender and way out, and carries a reason to count by. A key in the left column, or ``labels``
or ``loss_mask``, that belongs to another shape than the record's is an error, for two readings of a record would
make two documents of it. Other keys are ignored, except those that change what a document is (see
:mod:`hermetic.data.shapes`). Keys whose value is null count as absent, for Parquet gives every row every column.
Price: one pass over each record.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from hermetic.data.shapes.checks import check_not_empty, check_text
from hermetic.data.shapes.conversations import ROLES, parse_conversations, parse_messages
from hermetic.data.shapes.preferences import parse_preference
from hermetic.data.shapes.prompts import parse_alpaca, parse_prompt
from hermetic.data.shapes.tokens import parse_tokens
from hermetic.data.shapes.types import (
    ChatRecord,
    PairRecord,
    PlainRecord,
    PreferenceRecord,
    Record,
    TextRecord,
    TokenRecord,
)
from hermetic.data.sources import SourceRecord
from hermetic.errors import RecordError

__all__ = [
    "ROLES",
    "ChatRecord",
    "PairRecord",
    "PlainRecord",
    "PreferenceRecord",
    "Record",
    "TextRecord",
    "TokenRecord",
    "parse_record",
]

Parser: TypeAlias = Callable[[str, Mapping[str, Any]], Record]

_KNOWN_SHAPES: Final = (
    "messages | conversations | instruction and output | prompt and completion | chosen and rejected, perhaps with "
    "prompt | text | input_ids, perhaps with labels or loss_mask"
)


def parse_record(record: SourceRecord, *, vocabulary: int, has_template: bool = True) -> Record:
    """Check a record and give it the type of its shape.

    Args:
        record: as it stands in its file.
        vocabulary: number of token ids of the tokenizer; given ids have to be below it.
        has_template: whether the tokenizer has a chat template; without one, Alpaca is a prompt and a completion.

    Raises:
        RecordError: If the record has no known shape, or more than one, or does not keep to it.
    """
    values = {key: value for key, value in record.values.items() if value is not None}
    shape = frozenset(values) & _SHAPE_KEYS
    if shape in _PARSERS:
        return _PARSERS[shape](record.where, values)
    if shape in _TOKEN_SHAPES:
        return parse_tokens(record.where, values, vocabulary=vocabulary)
    if shape == _ALPACA:
        return parse_alpaca(record.where, values, has_template=has_template)
    raise _no_shape(record.where, sorted(values), shape)


def _parse_text(where: str, values: Mapping[str, Any]) -> TextRecord:
    check_text(f"{where}: 'text'", values["text"])
    check_not_empty(f"{where}: 'text'", values["text"])
    return TextRecord(where=where, text=values["text"])


def _no_shape(where: str, keys: list[str], shape: frozenset[str]) -> RecordError:
    if shape >= {"labels", "loss_mask"}:
        return RecordError(
            f"{where}: the record has both 'labels' and 'loss_mask', expected one of them; remove the other",
            reason="two_shapes",
        )
    complete = [" and ".join(sorted(known)) for known in _PRIMARY if known <= shape]
    why = (
        f"fit {len(complete)} shapes ({'; '.join(complete)})"
        if len(complete) > 1
        else "are not exactly one known shape"
    )
    return RecordError(
        f"{where}: the keys {keys} {why}, expected {_KNOWN_SHAPES}; rename or remove keys",
        reason="two_shapes" if len(complete) > 1 else "no_shape",
    )


_ALPACA: Final = frozenset({"instruction", "output"})
_TOKEN_SHAPES: Final = (
    frozenset({"input_ids"}),
    frozenset({"input_ids", "labels"}),
    frozenset({"input_ids", "loss_mask"}),
)
_PARSERS: Final[dict[frozenset[str], Parser]] = {
    frozenset({"messages"}): parse_messages,
    frozenset({"conversations"}): parse_conversations,
    frozenset({"prompt", "completion"}): parse_prompt,
    frozenset({"text"}): _parse_text,
    frozenset({"chosen", "rejected"}): parse_preference,
    frozenset({"chosen", "rejected", "prompt"}): parse_preference,
}
_SHAPE_KEYS: Final = frozenset().union(*_PARSERS, *_TOKEN_SHAPES, _ALPACA)
_PRIMARY: Final = (*(keys for keys in _PARSERS if keys != {"chosen", "rejected", "prompt"}), _ALPACA, _TOKEN_SHAPES[0])
"""The keys that make each shape, without those that may stand beside them."""

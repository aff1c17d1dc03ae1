"""Checked records to tokens and labels.

    train_on              "assistant"                 "last"                "all"
    conversations         every answer                the last answer       every token
    prompt, completion    the completion              the completion        the prompt too
    preference pairs      what follows the prompt     its last answer       what follows the prompt
    text                  every token, whatever is asked for
    input_ids             as given, whatever is asked for

An answer is supervised up to its end of turn (see :mod:`hermetic.data.chat`), and a completion or a text with the
end-of-text token after it. Guarantee: a prompt is tokenized apart from its completion, so that its tokens are those
that a user's prompt will have. The beginning-of-text token is set where the tokenizer itself sets it; the
end-of-text token is not repeated where the text already ends in it. What two preferred texts begin with is what
their tokens begin with. Price: one batched call of the tokenizer for each shape.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any, TypeAlias

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data.chat import ChatEncoder, TrainOn
from hermetic.data.encoded import EncodedDocument, Outcome, document, with_labels
from hermetic.data.encoder import TextEncoder
from hermetic.data.shapes.types import (
    ChatRecord,
    PairRecord,
    PlainRecord,
    PreferenceRecord,
    Record,
    TextRecord,
    TokenRecord,
)
from hermetic.errors import DataError, RecordError

__all__ = ["EncodedDocument", "RecordEncoder", "TrainOn"]

Documents: TypeAlias = tuple[EncodedDocument, ...]
"""Of one record: its document, or the chosen and the rejected one of a preference pair."""


_Part: TypeAlias = tuple[PlainRecord, bool]
"""What becomes one document, and whether it is one of a preference pair."""


class RecordEncoder:
    """A tokenizer and what is to be supervised.

    Args:
        tokenizer: a Hugging Face tokenizer.
        train_on: "all", "assistant" or "last", see the table of this module.
        today: the date of chat templates that write one; by default that of the clock.
    """

    def __init__(self, tokenizer: Any, train_on: TrainOn = "assistant", today: date | None = None) -> None:
        self._train_on = train_on
        self._encoder = TextEncoder(tokenizer)
        self._chats = ChatEncoder(self._encoder, today)

    def encode(self, records: Sequence[Record]) -> list[Documents | DataError]:
        """The documents of each record, or why it has none.

        Raises:
            TemplateError: If there is a conversation, and the tokenizer has no chat template, or one that does not
                render two short turns.
        """
        parts = [_parts(record) for record in records]
        outcomes = iter(self._encode_parts([part for several in parts for part in several]))
        return [
            _of_record(record, [next(outcomes) for _ in several])
            for record, several in zip(records, parts, strict=True)
        ]

    def _encode_parts(self, parts: Sequence[_Part]) -> list[Outcome]:
        """One document for each part, all parts of a kind at once."""
        kinds: dict[tuple[type[PlainRecord], bool], list[int]] = {}
        for index, (record, preferred) in enumerate(parts):
            kinds.setdefault((type(record), preferred), []).append(index)
        outcomes: dict[int, Outcome] = {}
        for (kind, preferred), indices in kinds.items():
            # What both documents of a preference pair begin with has the same loss in both.
            train_on = "assistant" if preferred and self._train_on == "all" else self._train_on
            documents = self._encode_kind(kind, [parts[index][0] for index in indices], train_on)
            outcomes.update(zip(indices, documents, strict=True))
        return [outcomes[index] for index in range(len(parts))]

    def _encode_kind(self, kind: type[PlainRecord], records: Sequence[Any], train_on: TrainOn) -> list[Outcome]:
        if kind is ChatRecord:
            return self._chats.encode(records, train_on)
        if kind is PairRecord:
            return self._encode_pairs(records, train_on)
        if kind is TextRecord:
            return self._encode_texts(records)
        return [_as_given(record) for record in records]

    def _encode_pairs(self, pairs: Sequence[PairRecord], train_on: TrainOn) -> list[Outcome]:
        names = [pair.where for pair in pairs]
        prompts = self._encoder.token_ids(names, [pair.prompt for pair in pairs])
        completions = self._encoder.token_ids(names, [pair.completion for pair in pairs])
        return [
            self._pair(name, prompt, completion, train_on)
            for name, prompt, completion in zip(names, prompts, completions, strict=True)
        ]

    def _pair(
        self, where: str, prompt: list[int] | RecordError, completion: list[int] | RecordError, train_on: TrainOn
    ) -> Outcome:
        if isinstance(prompt, RecordError):
            return prompt
        if isinstance(completion, RecordError):
            return completion
        if not completion:
            return document(where, [], [])
        before = self._encoder.start + prompt
        ids = before + self._encoder.closed(completion)
        return document(where, ids, [(0 if train_on == "all" else len(before), len(ids))])

    def _encode_texts(self, texts: Sequence[TextRecord]) -> list[Outcome]:
        names = [text.where for text in texts]
        tokens = self._encoder.token_ids(names, [text.text for text in texts])
        return [self._text(*named) for named in zip(names, tokens, strict=True)]

    def _text(self, where: str, tokens: list[int] | RecordError) -> Outcome:
        if isinstance(tokens, RecordError):
            return tokens
        ids = [*self._encoder.start, *self._encoder.closed(tokens)] if tokens else []
        return document(where, ids, [(0, len(ids))])


def _parts(record: Record) -> tuple[_Part, ...]:
    if isinstance(record, PreferenceRecord):
        return (record.chosen, True), (record.rejected, True)
    return ((record, False),)


def _of_record(record: Record, outcomes: Sequence[Outcome]) -> Documents | DataError:
    """The documents of a record, or the error of the first that has none."""
    documents: list[EncodedDocument] = []
    for outcome in outcomes:
        if isinstance(outcome, DataError):
            return outcome
        documents.append(outcome)
    if isinstance(record, PreferenceRecord) and isinstance(record.chosen, TextRecord):
        return _without_shared_labels(record.where, *documents)
    return tuple(documents)


def _without_shared_labels(where: str, chosen: EncodedDocument, rejected: EncodedDocument) -> Documents | DataError:
    """Two texts of which the tokens that they begin with are unsupervised.

    Example:
        tokens ``[5, 6, 7]`` and ``[5, 6, 8, 2]``: labels ``[-100, -100, 7]`` and ``[-100, -100, 8, 2]``.
    """
    length = min(len(chosen.input_ids), len(rejected.input_ids))
    different = np.flatnonzero(chosen.input_ids[:length] != rejected.input_ids[:length])
    if not len(different):
        return RecordError(
            f"{where}: the tokens of 'chosen' or of 'rejected' are how the other begins, expected that each has "
            "tokens of its own; remove the record, or choose a tokenizer with an end-of-text token",
            reason="no_preference",
        )
    for text in (chosen, rejected):
        text.labels[: different[0]] = IGNORE_INDEX
    return chosen, rejected


def _as_given(record: TokenRecord) -> EncodedDocument:
    return with_labels(record.input_ids, record.labels.copy())

"""Checked records to tokens and labels.

    messages             assistant tokens and their end of turn are supervised (see hermetic.data.chat)
    prompt, completion   the completion and the end-of-text token are supervised
    text                 everything is supervised, the end-of-text token too
    input_ids            as given

Guarantee: labels are unshifted, equal to the token where it is supervised and -100 elsewhere, and the first
token of a document is never supervised, for nothing predicts it. A prompt is tokenized apart from its
completion, so that its tokens are those that a user's prompt will have. The beginning-of-text token is set
where the tokenizer itself sets it; the end-of-text token is not repeated where the text already ends in it.
Price: one batched call of the tokenizer for each shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.data.chat import encode_chats
from hermetic.data.records import ChatRecord, PairRecord, Record, TextRecord, TokenRecord
from hermetic.errors import RecordError

__all__ = ["EncodedDocument", "encode_records"]

TokenArray: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedDocument:
    """One document: token ids and unshifted labels, both ``[T]`` int32 with T of at least 1."""

    input_ids: TokenArray
    labels: TokenArray


def encode_records(records: Sequence[Record], tokenizer: Any) -> list[EncodedDocument]:
    """Tokenize records and label their tokens.

    Args:
        records: of any shapes.
        tokenizer: a Hugging Face tokenizer.

    Returns:
        One document for each record, in the same order.

    Raises:
        RecordError: If a record has no tokens.
        TemplateError: If a conversation cannot be rendered.
    """
    encoded: dict[int, EncodedDocument] = {}
    for kind, encode in _ENCODERS.items():
        chosen = [index for index, record in enumerate(records) if isinstance(record, kind)]
        documents = encode([records[index] for index in chosen], tokenizer)
        encoded.update(zip(chosen, documents, strict=True))
    return [encoded[index] for index in range(len(records))]


def _document(where: str, input_ids: TokenArray, supervised: npt.NDArray[np.bool_]) -> EncodedDocument:
    if not len(input_ids):
        raise RecordError(
            f"{where}: the tokenizer makes no tokens of this document, expected at least one; remove the record"
        )
    return _with_unsupervised_start(input_ids, np.where(supervised, input_ids, np.int32(IGNORE_INDEX)))


def _with_unsupervised_start(input_ids: TokenArray, labels: TokenArray) -> EncodedDocument:
    labels[0] = IGNORE_INDEX
    return EncodedDocument(input_ids=input_ids, labels=labels)


def _encode_chats(records: Sequence[Any], tokenizer: Any) -> list[EncodedDocument]:
    chats: Sequence[ChatRecord] = records
    encoded = encode_chats(chats, tokenizer)
    return [_document(chat.where, *columns) for chat, columns in zip(chats, encoded, strict=True)]


def _encode_pairs(records: Sequence[Any], tokenizer: Any) -> list[EncodedDocument]:
    pairs: Sequence[PairRecord] = records
    prompts = _tokenize([pair.prompt for pair in pairs], tokenizer)
    completions = _tokenize([pair.completion for pair in pairs], tokenizer)
    start = _start_of_text(tokenizer)
    documents = []
    for pair, prompt, completion in zip(pairs, prompts, completions, strict=True):
        ids = np.array(start + prompt + _closed(pair.where, completion, tokenizer), dtype=np.int32)
        documents.append(_document(pair.where, ids, np.arange(len(ids)) >= len(start) + len(prompt)))
    return documents


def _encode_texts(records: Sequence[Any], tokenizer: Any) -> list[EncodedDocument]:
    texts: Sequence[TextRecord] = records
    start = _start_of_text(tokenizer)
    documents = []
    for text, tokens in zip(texts, _tokenize([text.text for text in texts], tokenizer), strict=True):
        ids = np.array(start + _closed(text.where, tokens, tokenizer), dtype=np.int32)
        documents.append(_document(text.where, ids, np.ones(len(ids), dtype=np.bool_)))
    return documents


def _encode_tokens(records: Sequence[Any], tokenizer: Any) -> list[EncodedDocument]:
    del tokenizer
    given: Sequence[TokenRecord] = records
    return [_with_unsupervised_start(record.input_ids, record.labels.copy()) for record in given]


def _tokenize(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    if not texts:
        return []
    batch = tokenizer(list(texts), add_special_tokens=False, truncation=False, padding=False)
    ids: list[list[int]] = batch["input_ids"]
    return ids


def _closed(where: str, tokens: list[int], tokenizer: Any) -> list[int]:
    """The tokens with one end-of-text token at their end, if the tokenizer has one."""
    if not tokens:
        raise RecordError(
            f"{where}: the tokenizer makes no tokens of this document, expected at least one; remove the record"
        )
    end = tokenizer.eos_token_id
    return tokens if end is None or tokens[-1] == end else [*tokens, end]


def _start_of_text(tokenizer: Any) -> list[int]:
    """The beginning-of-text token, if this tokenizer begins texts with it."""
    begun = tokenizer("a", add_special_tokens=True)["input_ids"]
    return [begun[0]] if tokenizer.bos_token_id is not None and begun[0] == tokenizer.bos_token_id else []


_ENCODERS = {
    ChatRecord: _encode_chats,
    PairRecord: _encode_pairs,
    TextRecord: _encode_texts,
    TokenRecord: _encode_tokens,
}

"""A run of records to the tokens, labels and lengths of its documents: the unit of work of a pack.

Algorithm: about a thousand records at a time are checked, rendered, tokenized and labelled, and their arrays
joined. Guarantee: the result depends on the records, the tokenizer and ``train_on`` alone; documents stand in the
order of their records, each with the number of its record; every record is either there or, if bad records are to be
skipped, among the skipped with its reason. Price: 8 bytes a token, twice while the arrays are joined.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from hermetic.data.encoded import EncodedDocument
from hermetic.data.encoder import undisturbed
from hermetic.data.records import Record, parse_record
from hermetic.data.sources import BadRecord, SourceRecord
from hermetic.data.supervision import Documents, RecordEncoder, TrainOn
from hermetic.errors import DataError, HermeticError, RecordError

__all__ = ["EncodedPart", "OnBadRecord", "Skipped", "TrainOn", "encode_part"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
IndexArray: TypeAlias = npt.NDArray[np.int64]
RoleArray: TypeAlias = npt.NDArray[np.int8]
OnBadRecord: TypeAlias = Literal["error", "skip"]

_RECORDS_AT_ONCE: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A record of which no document was made."""

    number: int
    """1-based line, element or row of its file."""

    reason: str
    """A word to count by, such as "empty" or "malformed"."""

    message: str
    """The text of the error that it would have been."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPart:
    """D documents of T tokens in all, end to end.

    Example:
        Documents ``[5, 6, 7]`` and ``[8, 9]`` of lines 1 and 3: tokens ``[5, 6, 7, 8, 9]``, lengths ``[3, 2]``,
        numbers ``[1, 3]``, roles ``[0, 0]``.
    """

    tokens: TokenArray
    """``[T]`` token ids."""

    labels: TokenArray
    """``[T]``, unshifted, -100 on the first token of each document and on unsupervised tokens."""

    lengths: TokenArray
    """``[D]`` tokens of each document."""

    numbers: IndexArray
    """``[D]``: the 1-based record of the file that each document comes from."""

    roles: RoleArray
    """``[D]``: 0 a document; 1 chosen and 2 rejected of a preference pair, which are neighbours."""

    skipped: tuple[Skipped, ...]
    """Bad records in their order."""


def encode_part(
    records: Iterable[SourceRecord | BadRecord],
    *,
    tokenizer: Any,
    train_on: TrainOn = "assistant",
    on_bad_record: OnBadRecord = "error",
    today: date | None = None,
) -> EncodedPart:
    """Check, render, tokenize and label records.

    Args:
        records: as a reader of sources gives them.
        tokenizer: a Hugging Face tokenizer; it is left as it was found.
        train_on: "assistant" (its answers; the completion of a prompt), "last" (only the last answer) or "all".
        on_bad_record: "error" raises the error of the first bad record; "skip" leaves bad records out and names them.
        today: the date of chat templates that write one; by default that of the clock.

    Returns:
        The documents, and the records that were skipped.

    Raises:
        SourceError: If a record could not be read and ``on_bad_record`` is "error".
        RecordError: If a record is malformed or has no tokens and ``on_bad_record`` is "error".
        TemplateError: If a conversation cannot be rendered and ``on_bad_record`` is "error"; whatever that is, if the
            tokenizer has no chat template, for then none can.
        DataError: If an option has another value.

    Example:
        Of the lines ``{"text": "You are"}`` and ``{"text": ""}``, "skip" makes one document, with the numbers
        ``[1]``, and one skipped record with number 2 and reason "empty".
    """
    _check_option("train_on", train_on, get_args(TrainOn))
    _check_option("on_bad_record", on_bad_record, get_args(OnBadRecord))
    with undisturbed(tokenizer):
        encoder = RecordEncoder(tokenizer, train_on, today)
        batches = [_encode_batch(batch, tokenizer, encoder, on_bad_record) for batch in _in_batches(iter(records))]
    return _joined(batches)


def _check_option(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise DataError(f"{name} is {value!r}, expected one of {', '.join(known)}")


def _in_batches(records: Iterator[SourceRecord | BadRecord]) -> Iterator[list[SourceRecord | BadRecord]]:
    while batch := list(itertools.islice(records, _RECORDS_AT_ONCE)):
        yield batch


def _encode_batch(
    batch: Sequence[SourceRecord | BadRecord], tokenizer: Any, encoder: RecordEncoder, on_bad_record: OnBadRecord
) -> EncodedPart:
    vocabulary, has_template = len(tokenizer), tokenizer.chat_template is not None
    parsed = [_parsed(record, vocabulary=vocabulary, has_template=has_template) for record in batch]
    encoded = iter(encoder.encode([record for record in parsed if not isinstance(record, HermeticError)]))
    results = [record if isinstance(record, HermeticError) else next(encoded) for record in parsed]
    numbers = [record.number for record in batch]
    if on_bad_record == "error":
        for result in results:
            if isinstance(result, HermeticError):
                raise result
    return _part_of(numbers, results)


def _parsed(record: SourceRecord | BadRecord, *, vocabulary: int, has_template: bool) -> Record | HermeticError:
    if isinstance(record, BadRecord):
        return record.error
    try:
        return parse_record(record, vocabulary=vocabulary, has_template=has_template)
    except RecordError as error:
        return error


def _part_of(numbers: Sequence[int], results: Sequence[Documents | HermeticError]) -> EncodedPart:
    documents: list[EncodedDocument] = []
    origins: list[int] = []
    roles: list[int] = []
    skipped: list[Skipped] = []
    for number, result in zip(numbers, results, strict=True):
        if isinstance(result, HermeticError):
            skipped.append(Skipped(number=number, reason=_reason(result), message=str(result)))
            continue
        documents += result
        origins += [number] * len(result)
        roles += [0] if len(result) == 1 else [1, 2]
    return EncodedPart(
        tokens=_concatenated([document.input_ids for document in documents], np.int32),
        labels=_concatenated([document.labels for document in documents], np.int32),
        lengths=np.array([len(document.input_ids) for document in documents], dtype=np.int32),
        numbers=np.array(origins, dtype=np.int64),
        roles=np.array(roles, dtype=np.int8),
        skipped=tuple(skipped),
    )


def _reason(error: HermeticError) -> str:
    """Each error of a source, a record or a template has one."""
    reason: str = getattr(error, "reason", "malformed")
    return reason


def _joined(parts: Sequence[EncodedPart]) -> EncodedPart:
    return EncodedPart(
        tokens=_concatenated([part.tokens for part in parts], np.int32),
        labels=_concatenated([part.labels for part in parts], np.int32),
        lengths=_concatenated([part.lengths for part in parts], np.int32),
        numbers=_concatenated([part.numbers for part in parts], np.int64),
        roles=_concatenated([part.roles for part in parts], np.int8),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
    )


def _concatenated(arrays: Sequence[npt.NDArray[Any]], dtype: type[np.integer]) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)

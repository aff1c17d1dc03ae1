"""All documents of a source, tokenized and held flat.

Algorithm: records are read, checked and tokenized a thousand at a time and appended to two growing int32
buffers. Guarantee: document ``i`` is record ``i`` of the source, nothing is left out and nothing repeated.
Price: 8 bytes a token and 16 a document; the text itself is gone as soon as its thousand is tokenized.
"""

import itertools
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.records import parse_record
from hermetic.data.sources import SourceRecord, location, read_records
from hermetic.data.supervision import encode_records

__all__ = ["TokenizedDocuments", "tokenize_file"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
IndexArray: TypeAlias = npt.NDArray[np.int64]

_RECORDS_AT_ONCE: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedDocuments:
    """D documents of T tokens in all, end to end.

    Example:
        Documents ``[5, 6, 7]`` and ``[8, 9]``: tokens ``[5, 6, 7, 8, 9]``, offsets ``[0, 3, 5]``.
    """

    source: Path
    tokens: TokenArray
    """``[T]`` token ids."""

    labels: TokenArray
    """``[T]``, unshifted, -100 on the first token of each document and on unsupervised tokens."""

    offsets: IndexArray
    """``[D + 1]``: document ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``."""

    numbers: IndexArray
    """``[D]``: the 1-based line or row of each document in the source."""

    @property
    def lengths(self) -> IndexArray:
        """``[D]`` tokens of each document."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.numbers)

    def document(self, index: int) -> dict[str, TokenArray]:
        """Document ``index`` as ``hermetic.collate`` takes it: ``input_ids`` and ``labels``."""
        tokens = slice(self.offsets[index], self.offsets[index + 1])
        return {"input_ids": self.tokens[tokens], "labels": self.labels[tokens]}

    def where(self, index: int) -> str:
        """The place of document ``index`` in its source, as ``file:number``."""
        return location(self.source, int(self.numbers[index]))


def tokenize_file(
    source: str | os.PathLike[str], *, tokenizer: Any, on_progress: Callable[[int], None] | None = None
) -> TokenizedDocuments:
    """Read and tokenize every record of a source.

    Args:
        source: a ``.jsonl``, ``.json`` (one object a line) or ``.parquet`` file.
        tokenizer: a Hugging Face tokenizer, see :func:`hermetic.data.load_tokenizer`.
        on_progress: called with the number of documents done so far, about every thousand documents.

    Raises:
        SourceError: If the file is missing, empty or malformed.
        RecordError: If a record is malformed or has no tokens.
        TemplateError: If a conversation cannot be rendered.
    """
    tokens, labels, lengths, numbers = array("i"), array("i"), array("q", [0]), array("q")
    for records in _in_batches(read_records(source)):
        parsed = [parse_record(record, vocabulary=len(tokenizer)) for record in records]
        for record, document in zip(records, encode_records(parsed, tokenizer), strict=True):
            tokens.frombytes(document.input_ids.tobytes())
            labels.frombytes(document.labels.tobytes())
            lengths.append(len(document.input_ids))
            numbers.append(record.number)
        if on_progress is not None:
            on_progress(len(numbers))
    return TokenizedDocuments(
        source=Path(source),
        tokens=_frozen(np.frombuffer(tokens, dtype=np.int32)),
        labels=_frozen(np.frombuffer(labels, dtype=np.int32)),
        offsets=_frozen(np.cumsum(np.frombuffer(lengths, dtype=np.int64))),
        numbers=_frozen(np.frombuffer(numbers, dtype=np.int64)),
    )


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, read-only: views of it are handed out."""
    values.setflags(write=False)
    return values


def _in_batches(records: Iterator[SourceRecord]) -> Iterator[list[SourceRecord]]:
    while batch := list(itertools.islice(records, _RECORDS_AT_ONCE)):
        yield batch

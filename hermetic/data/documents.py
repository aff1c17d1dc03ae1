"""All documents of one file, tokenized and held flat: for a file that fits into memory.

Algorithm: records are read, checked and tokenized a thousand at a time (see :mod:`hermetic.data.encode`) and
joined. Guarantee: document ``i`` is record ``i`` of the source, nothing is left out and nothing repeated.
Price: 8 bytes a token and 16 a document, twice while they are joined.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.encode import EncodedPart, TrainOn, encode_part
from hermetic.data.sources import SourceRecord, location, read_records
from hermetic.errors import RecordError

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
    source: str | os.PathLike[str],
    *,
    tokenizer: Any,
    train_on: TrainOn = "assistant",
    on_progress: Callable[[int], None] | None = None,
) -> TokenizedDocuments:
    """Read and tokenize every record of a source.

    Args:
        source: a ``.jsonl``, ``.json`` (one object a line) or ``.parquet`` file.
        tokenizer: a Hugging Face tokenizer, see :func:`hermetic.data.load_tokenizer`.
        train_on: as in :func:`hermetic.data.encode.encode_part`.
        on_progress: called with the number of documents done so far, about every thousand documents.

    Raises:
        SourceError: If the file is missing, empty or malformed.
        RecordError: If a record is malformed, has no tokens, or is a preference pair.
        TemplateError: If a conversation cannot be rendered.
    """
    parts: list[EncodedPart] = []
    done = 0
    for records in _in_batches(read_records(source)):
        part = encode_part(records, tokenizer=tokenizer, train_on=train_on)
        _check_no_pairs(part, source)
        parts.append(part)
        done += len(part.lengths)
        if on_progress is not None:
            on_progress(done)
    lengths = np.concatenate([part.lengths for part in parts])
    return TokenizedDocuments(
        source=Path(source),
        tokens=_frozen(np.concatenate([part.tokens for part in parts])),
        labels=_frozen(np.concatenate([part.labels for part in parts])),
        offsets=_frozen(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])),
        numbers=_frozen(np.concatenate([part.numbers for part in parts])),
    )


def _check_no_pairs(part: EncodedPart, source: str | os.PathLike[str]) -> None:
    if part.roles.any():
        first = int(part.numbers[np.argmax(part.roles != 0)])
        raise RecordError(
            f"{location(Path(source), first)}: the record is a preference pair, expected records of one document each; "
            "pack the pairs of a file with hermetic pack",
            reason="preference_pair",
        )


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, read-only: views of it are handed out."""
    values.setflags(write=False)
    return values


def _in_batches(records: Iterator[SourceRecord]) -> Iterator[list[SourceRecord]]:
    while batch := list(itertools.islice(records, _RECORDS_AT_ONCE)):
        yield batch

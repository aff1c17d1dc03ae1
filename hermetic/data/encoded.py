"""One document as token ids and labels.

Guarantee: labels are unshifted, equal to the token where it is supervised and -100 elsewhere, by position and
never by the token's value; the first token of a document is never supervised, for nothing predicts it.
Price: 8 bytes a token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.errors import DataError, RecordError

__all__ = ["EncodedDocument", "Outcome", "Span", "document", "with_labels"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
Span: TypeAlias = tuple[int, int]
"""Tokens from the first number up to, and without, the second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedDocument:
    """One document: token ids and unshifted labels, both ``[T]`` int32 with T of at least 1."""

    input_ids: TokenArray
    labels: TokenArray


Outcome: TypeAlias = EncodedDocument | DataError
"""A document, or why there is none."""


def document(where: str, ids: list[int], supervised: Iterable[Span]) -> Outcome:
    """Token ids with the tokens of the spans supervised.

    Example:
        ids ``[5, 6, 2, 7, 2]`` and spans ``[(1, 3), (4, 5)]``: labels ``[-100, 6, 2, -100, 2]``.
    """
    if not ids:
        return RecordError(
            f"{where}: the tokenizer makes no tokens of this document, expected at least one; remove the record",
            reason="empty",
        )
    input_ids = np.array(ids, dtype=np.int32)
    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int32)
    for start, stop in supervised:
        labels[start:stop] = input_ids[start:stop]
    return with_labels(input_ids, labels)


def with_labels(input_ids: TokenArray, labels: TokenArray) -> EncodedDocument:
    """The document of these arrays; the first label is overwritten."""
    labels[0] = IGNORE_INDEX
    return EncodedDocument(input_ids=input_ids, labels=labels)

"""Documents for a stream, in parts that can be read again.

Guarantee: what a source owes. ``read(part)`` returns the same documents whenever and wherever it is asked. Price: a
part is in memory as long as it is read from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hermetic.batch import collate
from hermetic.data.feed.arguments import whole_number
from hermetic.errors import DocumentError, FeedError

TokenArray: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPart:
    """D documents of T tokens in all, end to end.

    Example:
        Documents ``[5, 6, 7]`` and ``[8, 9]``: tokens ``[5, 6, 7, 8, 9]``, lengths ``[3, 2]``.
    """

    tokens: TokenArray
    """``[T]``."""

    labels: TokenArray
    """``[T]``, unshifted, -100 on the first token of each document and on unsupervised tokens."""

    lengths: TokenArray
    """``[D]`` tokens of each document; 0 for an empty one."""

    num_skipped: int = 0
    """Records of the part that are no document, for the ledger."""

    def __post_init__(self) -> None:
        tokens = int(self.lengths.sum())
        if not tokens == len(self.tokens) == len(self.labels):
            raise FeedError(
                f"a part has {len(self.tokens)} tokens, {len(self.labels)} labels and lengths of {tokens} tokens, "
                "expected as many of each"
            )


@runtime_checkable
class DocumentSource(Protocol):
    """What a stream reads. It travels to workers, so it is picklable; ``fingerprint`` tells one source from another."""

    @property
    def num_parts(self) -> int:
        """Parts, numbered from 0."""

    @property
    def fingerprint(self) -> str:
        """A short text that is another where the documents are others, as far as the source can tell."""

    def read(self, part: int) -> DocumentPart:
        """The documents of a part, the same each time."""


class DocumentList:
    """Documents that are in memory already.

    Args:
        documents: each a mapping with ``input_ids`` and at most one of ``labels`` and ``loss_mask``, as
            ``hermetic.collate`` takes them; empty ones are allowed. Any sequence, such as a ``datasets.Dataset`` with
            just these columns.
        documents_per_part: how many make a part.

    Raises:
        FeedError: There are no documents. While reading: one of them is malformed.

    Example:
        >>> DocumentList([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]).read(0).lengths
        array([3, 2], dtype=int32)
    """

    def __init__(self, documents: Sequence[Mapping[str, Any]], *, documents_per_part: int = 1024) -> None:
        if len(documents) == 0:
            raise FeedError("there are no documents, expected at least one")
        self.documents = documents
        self.documents_per_part = whole_number(documents_per_part, "documents_per_part", minimum=1)

    @property
    def num_parts(self) -> int:
        """Parts of ``documents_per_part``; the last may be smaller."""
        return -(-len(self.documents) // self.documents_per_part)

    @property
    def fingerprint(self) -> str:
        """How many documents there are, in what parts; a list does not tell more cheaply."""
        return f"{len(self.documents)} documents, {self.documents_per_part} a part"

    def read(self, part: int) -> DocumentPart:
        """Gather the documents of a part."""
        first = part * self.documents_per_part
        numbers = range(first, min(first + self.documents_per_part, len(self.documents)))
        try:
            batch = collate([self.documents[number] for number in numbers])
        except DocumentError as error:
            raise FeedError(f"in the documents from number {first} on, {error}") from error
        return DocumentPart(
            tokens=batch.input_ids.numpy().astype(np.int32),
            labels=batch.labels.numpy().astype(np.int32),
            lengths=np.array(batch.boundaries.document_lengths, np.int32),
        )

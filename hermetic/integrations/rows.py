"""Packed rows as the data sets and collators of any training stack; no stack is imported here.

Guarantee: every collator lays down the same documents, each whole, with the same supervised tokens; a row that has lost
its ``seq_lengths`` is refused, for it would look like one document. Price: one copy of the tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hermetic.batch import PackedBatch, collate
from hermetic.batch.integers import int64_array
from hermetic.constants import IGNORE_INDEX
from hermetic.data import PackedData
from hermetic.data.feed import collate_packed_rows, documents_of_row
from hermetic.errors import FeedError

Row = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""The documents of one row, each with ``input_ids`` and perhaps ``labels``; or a packed row with ``seq_lengths``, as
``hermetic.data.PackedDataset`` and TRL's ``pack_dataset`` have them."""

Items = Literal["rows", "documents"]

_ITEMS: Final = ("rows", "documents")
_MASKS: Final = ("loss_mask", "completion_mask", "assistant_masks")
"""Columns of others by which tokens are left out of the loss."""


class RowDataset(Dataset[Row]):
    """The rows of a packed folder for a DataLoader: one item is the list of a row's documents."""

    def __init__(self, packed: PackedData) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Row:
        return list(self.packed.documents_of_row(index))

    def __iter__(self) -> Iterator[Row]:
        return self.packed.rows()


class PackedCollator:
    """Rows, or documents, to the inputs of a sealed model: one flat stream, labels included.

    Several rows are simply more documents in the stream.
    """

    def __init__(
        self,
        *,
        items: Items = "rows",
        pad_to_multiple: int | None = None,
        pad_token_id: int = 0,
    ) -> None:
        """Make a collator.

        Args:
            items: what a data set's item is: ``"rows"``, each a list of documents or a packed row; or ``"documents"``,
                each a mapping with ``input_ids`` and perhaps ``labels``.
            pad_to_multiple: round the slots of a batch up to a multiple of this.
            pad_token_id: what fills the tail.

        Raises:
            FeedError: ``items`` is neither.
        """
        if items not in _ITEMS:
            raise FeedError(f"items is {items!r}, expected one of {', '.join(map(repr, _ITEMS))}")
        self.items = items
        self.pad_to_multiple = pad_to_multiple
        self.pad_token_id = pad_token_id

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """``batch.model_inputs()`` of all documents of ``items``."""
        laid_down: Callable[..., PackedBatch] = collate_rows if self.items == "rows" else collate
        return laid_down(items, pad_to_multiple=self.pad_to_multiple, pad_token_id=self.pad_token_id).model_inputs()


class PaddedCollator:
    """The unpacked baseline: the same documents, one to a row, padded on the right to the longest."""

    def __init__(self, *, pad_token_id: int = 0) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """``input_ids``, ``labels`` and ``attention_mask``, each ``[D, longest]``."""
        batch = collate_rows(rows)
        ids, labels = batch.unpack(batch.input_ids), batch.unpack(batch.labels)
        ones = [torch.ones_like(document) for document in ids]
        return {
            name: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=blank)
            for name, parts, blank in (
                ("input_ids", ids, self.pad_token_id),
                ("labels", labels, IGNORE_INDEX),
                ("attention_mask", ones, 0),
            )
        }


def collate_rows(rows: Sequence[Row], **options: Any) -> PackedBatch:
    """All documents of ``rows`` in one batch.

    Args:
        rows: lists of documents, packed rows, or both.
        **options: as in ``hermetic.collate``.

    Raises:
        FeedError: A packed row has no ``seq_lengths``, a mask of the loss in place of ``labels``, or columns that do
            not fit each other.
        BatchError, DocumentError: as ``hermetic.collate``.

    Example:
        >>> row = {"input_ids": [5, 6, 7], "seq_lengths": [2, 1]}
        >>> collate_rows([row, [{"input_ids": [8, 9]}]]).labels
        tensor([-100,    6, -100, -100,    9])
    """
    packed = [_packed_row(row, index) for index, row in enumerate(rows) if isinstance(row, Mapping)]
    if packed and len(packed) == len(rows) and set(options) <= {"pad_to_multiple", "pad_token_id"}:
        return collate_packed_rows(packed, **options)
    of_packed = iter(packed)
    documents = (documents_of_row(next(of_packed)) if isinstance(row, Mapping) else row for row in rows)
    return collate([document for row in documents for document in row], **options)


def lengths_of_rows(dataset: Any) -> list[npt.NDArray[np.int64]]:
    """The lengths of the documents of every row of a data set.

    Args:
        dataset: a ``PackedDataset``, a ``RowDataset``, a data set with a column ``seq_lengths`` or ``input_ids``, or a
            sequence of rows. All but the last are not read in whole.

    Returns:
        One array for each row.

    Example:
        >>> lengths_of_rows([[{"input_ids": [1, 2]}, {"input_ids": [3]}], [{"input_ids": [4]}]])
        [array([2, 1]), array([1])]
    """
    if isinstance(dataset, RowDataset):
        edges = np.cumsum(dataset.packed.documents_per_row)[:-1]
        return [part.astype(np.int64) for part in np.split(dataset.packed.document_lengths, edges)]
    column = getattr(dataset, "column_names", None) or ()
    if "seq_lengths" in column:
        return [np.asarray(lengths, np.int64) for lengths in dataset["seq_lengths"]]
    return [_lengths_of_row(dataset[index]) for index in range(len(dataset))]


def _lengths_of_row(row: Any) -> npt.NDArray[np.int64]:
    if isinstance(row, Mapping):
        return np.asarray(row["seq_lengths"] if "seq_lengths" in row else [len(row["input_ids"])], np.int64)
    return np.array([len(document["input_ids"]) for document in row], np.int64)


def _packed_row(row: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """The row with labels, none of them on a document's first token; packers of others leave them there."""
    if "seq_lengths" not in row:
        raise FeedError(
            f"row {index} has no 'seq_lengths', found {sorted(row)}, so nobody can tell where its documents start. "
            "Where a Trainer took the column away, pass remove_unused_columns=False; where items are single documents, "
            "use PackedCollator(items='documents')"
        )
    mask = next((name for name in _MASKS if name in row and "labels" not in row), None)
    if mask is not None:
        raise FeedError(
            f"row {index} has {mask!r} and no 'labels', so all of its tokens would be trained on; expected 'labels', "
            f"with {IGNORE_INDEX} where the mask is 0"
        )
    lengths = int64_array(row["seq_lengths"], name=f"row {index}'s seq_lengths", ndims=(1,), error=FeedError)
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    labels = np.asarray(row.get("labels", row["input_ids"]))
    if labels.ndim != 1:
        raise FeedError(f"row {index}'s labels have shape {list(labels.shape)}, expected [T]")
    if len(starts) and starts[-1] < len(labels) and (labels[starts] != IGNORE_INDEX).any():
        labels = labels.copy()
        labels[starts] = IGNORE_INDEX
    return {**row, "labels": labels, "seq_lengths": lengths}

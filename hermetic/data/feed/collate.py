"""Rows that are packed already to one batch.

Algorithm: the rows' columns are concatenated; no document is looked at. Guarantee: the batch is what
``hermetic.collate`` makes of the same documents. Price: one copy of the tokens, to the int64 that models take.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hermetic.batch import Boundaries, PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.data.feed.arguments import whole_number
from hermetic.errors import FeedError


def collate_packed_rows(
    rows: Sequence[Mapping[str, Any]], *, pad_to_multiple: int | None = None, pad_token_id: int = 0
) -> PackedBatch:
    """Lay rows end to end in one flat batch; each document stays one.

    Args:
        rows: B mappings with ``input_ids`` and ``labels`` of ``[T]`` and ``seq_lengths`` of ``[D]``, which sum to T.
        pad_to_multiple: round the slots of the batch up to a multiple of this.
        pad_token_id: what fills the tail.

    Raises:
        FeedError: There are no rows, the columns of one do not fit each other, or hold no whole numbers.
        BatchError: A value is not a token id, or a document's first token has a label.

    Example:
        >>> row = {"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "seq_lengths": [2, 1]}
        >>> collate_packed_rows([row], pad_to_multiple=4).model_inputs()["cu_seq_lens_q"]
        tensor([0, 2, 3, 4], dtype=torch.int32)
    """
    if not rows:
        raise FeedError("there are no rows, expected at least one; skip the batch instead of making an empty one")
    for index, row in enumerate(rows):
        _check_row(row, index)
    num_tokens = sum(len(row["input_ids"]) for row in rows)
    multiple = 1 if pad_to_multiple is None else whole_number(pad_to_multiple, "pad_to_multiple", minimum=1)
    tail = -num_tokens % multiple
    return PackedBatch(
        input_ids=_stream(rows, "input_ids", tail, pad_token_id),
        labels=_stream(rows, "labels", tail, IGNORE_INDEX),
        boundaries=Boundaries.from_lengths(np.concatenate([row["seq_lengths"] for row in rows])),
    )


def documents_of_row(row: Mapping[str, Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """The documents of a row, each with ``input_ids`` and ``labels``, as ``hermetic.collate`` takes them.

    Raises:
        FeedError: The columns do not fit each other.

    Example:
        >>> row = {"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "seq_lengths": [2, 1]}
        >>> [document["input_ids"].tolist() for document in documents_of_row(row)]
        [[5, 6], [7]]
    """
    _check_row(row, 0)
    edges = np.cumsum(row["seq_lengths"])[:-1]
    columns = (np.split(np.asarray(row[name]), edges) for name in ("input_ids", "labels"))
    return [{"input_ids": ids, "labels": labels} for ids, labels in zip(*columns, strict=True)]


def _stream(rows: Sequence[Mapping[str, Any]], name: str, tail: int, fill: int) -> torch.Tensor:
    parts = [np.asarray(row[name]) for row in rows]
    for index, part in enumerate(parts):
        if part.size and part.dtype.kind not in "iu":
            raise FeedError(f"row {index}'s {name} have dtype {part.dtype}, expected whole numbers")
    return torch.from_numpy(np.concatenate([*parts, np.full(tail, fill)]).astype(np.int64, copy=False))


def _check_row(row: Mapping[str, Any], index: int) -> None:
    missing = [name for name in ("input_ids", "labels", "seq_lengths") if name not in row]
    if missing:
        raise FeedError(f"row {index} has no {missing[0]!r}, found {sorted(row)}; expected a row of a PackedDataset")
    tokens = int(np.sum(row["seq_lengths"]))
    if not tokens == len(row["input_ids"]) == len(row["labels"]):
        raise FeedError(
            f"row {index} has {len(row['input_ids'])} input_ids, {len(row['labels'])} labels and seq_lengths of "
            f"{tokens} tokens, expected as many of each"
        )

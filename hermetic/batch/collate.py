"""Documents in, one PackedBatch out.

Algorithm: documents that are alike are concatenated and checked at once; others, and those among which something is
wrong, are read one by one. Then the first token of each document is masked in one write. Guarantee: inputs are never
written to, nothing is kept between calls, no column is lost without an error, and every error names the document.
Price: O(tokens) time, two int64 values of memory for each token; the batch is on the CPU, pinned if that is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.columns import Column, join_columns, read_column
from hermetic.batch.packed_batch import PackedBatch, batch_of_checked
from hermetic.constants import IGNORE_INDEX, INT32_MAX
from hermetic.errors import BatchError, DocumentError

_COLUMNS = frozenset({"input_ids", "labels", "loss_mask"})


def collate(
    documents: Sequence[Mapping[str, Any]],
    *,
    pad_to: int | None = None,
    pad_to_multiple: int | None = None,
    pad_token_id: int = 0,
    pin_memory: bool = False,
) -> PackedBatch:
    """Lay documents end to end in one flat batch.

    Args:
        documents: Each a mapping with ``input_ids`` and at most one of ``labels`` (unshifted, -100 where
            there is no loss) and ``loss_mask`` (0 or 1 for each token). Values are lists, NumPy arrays or
            tensors of one dimension. With neither, every token but the first is supervised. Documents may be
            empty.
        pad_to: Slots of the batch, at least the number of tokens.
        pad_to_multiple: Round the slots up to a multiple of this. Not together with ``pad_to``.
        pad_token_id: What fills the tail.
        pin_memory: Lay the batch into page-locked memory, from which an accelerator copies while the CPU goes on.

    Returns:
        A batch of T slots on the CPU. The first token of each document is never supervised, whatever its
        label or mask said, for nothing predicts it.

    Raises:
        BatchError: For no documents, padding that does not fit, or pinning where there is no accelerator.
        DocumentError: If a document has no ``input_ids``, an unknown key, both labels and mask, another
            number of labels than tokens, or values that are not token ids.

    Example:
        >>> collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "loss_mask": [1, 1]}], pad_to=6).labels
        tensor([-100,    6,    7, -100,    9, -100])
    """
    if not documents:
        raise BatchError("there are no documents, expected at least one; skip the batch instead of making an empty one")
    columns = _read_at_once(documents) or _read_each(documents)
    boundaries = Boundaries(document_lengths=tuple(columns.lengths))
    num_slots = _num_slots(boundaries.num_tokens, pad_to, pad_to_multiple)
    if type(pad_token_id) is not int or pad_token_id < 0:
        raise BatchError(
            f"pad_token_id is {pad_token_id!r}, expected a token id of 0 or more; pass the tokenizer's own"
        )
    if pin_memory and not torch.accelerator.is_available():
        raise BatchError(
            "pin_memory is True and there is no accelerator, expected one that copies from page-locked memory, such as "
            "a CUDA device; leave pin_memory off on a CPU"
        )
    labels = _stream(columns.labels, num_slots, IGNORE_INDEX, pin_memory=pin_memory)
    labels.numpy()[views.edges_from_lengths(boundaries.document_lengths)[:-1]] = IGNORE_INDEX
    return batch_of_checked(
        input_ids=_stream(columns.ids, num_slots, pad_token_id, pin_memory=pin_memory),
        labels=labels,
        boundaries=boundaries,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """All documents end to end, their values in range."""

    ids: Column
    labels: Column
    lengths: list[int]


def _read_at_once(documents: Sequence[Mapping[str, Any]]) -> _Columns | None:
    """Documents that are alike; None where one has to be looked at by itself, to be read or to be refused."""
    if set(map(type, documents)) != {dict} or len(sizes := set(map(len, documents))) != 1:
        return None
    try:
        match sizes.pop(), "loss_mask" in documents[0]:
            case 1, False:
                return _read_labelled(documents, ("input_ids",))
            case 2, False:
                return _read_labelled(documents, ("input_ids", "labels"))
            case 2, True:
                return _read_masked(documents)
    except KeyError:
        pass
    return None


def _read_labelled(documents: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> _Columns | None:
    joined = join_columns([document[name] for name in names for document in documents])
    if joined is None:
        return None
    values, lengths = joined
    lengths, label_lengths = lengths[: len(documents)], lengths[-len(documents) :]
    ids, labels = values[: sum(lengths)], values[-sum(lengths) :]
    ignored = np.count_nonzero(labels == IGNORE_INDEX) if len(names) > 1 else 0
    if lengths != label_lengths or np.count_nonzero(values < 0) > ignored:
        return None
    return _Columns(ids=ids, labels=labels, lengths=lengths)


def _read_masked(documents: Sequence[Mapping[str, Any]]) -> _Columns | None:
    joined = join_columns([document["input_ids"] for document in documents])
    masks = join_columns([document["loss_mask"] for document in documents], booleans=True)
    if joined is None or masks is None or joined[1] != masks[1]:
        return None
    (ids, lengths), (mask, _) = joined, masks
    if ids.min(initial=0) < 0 or mask.min(initial=0) < 0 or mask.max(initial=0) > 1:
        return None
    labels = ids.astype(np.int64)
    labels[mask != 1] = IGNORE_INDEX
    return _Columns(ids=ids, labels=labels, lengths=lengths)


def _read_each(documents: Sequence[Mapping[str, Any]]) -> _Columns:
    """One document after the other."""
    columns = [_read_document(document, index) for index, document in enumerate(documents)]
    return _Columns(
        ids=np.concatenate([ids for ids, _ in columns]),
        labels=np.concatenate([labels for _, labels in columns]),
        lengths=[len(ids) for ids, _ in columns],
    )


def _stream(column: Column, num_slots: int, fill: int, *, pin_memory: bool) -> torch.Tensor:
    """One new tensor that holds the column, and then the fill."""
    stream = torch.empty(num_slots, dtype=torch.int64, pin_memory=pin_memory)
    values = stream.numpy()
    values[: len(column)] = column
    if len(column) < num_slots:
        values[len(column) :] = fill
    return stream


def _as_integers(mask: Any) -> Any:
    """Booleans are the natural type of a mask; everywhere else they are refused as integers."""
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        return mask.to(torch.int64)
    if isinstance(mask, list | tuple) and mask and {bool, np.bool_}.issuperset(map(type, mask)):
        return np.array(mask, np.int64)
    return mask.astype(np.int64) if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else mask


def _read_document(document: Mapping[str, Any], index: int) -> tuple[Column, Column]:
    """Token ids and labels of equal length."""
    if not isinstance(document, Mapping):
        raise DocumentError(
            f"document {index} is of type {type(document).__name__}, expected a mapping with 'input_ids'; "
            f"wrap the tokens as {{'input_ids': tokens}}"
        )
    if not _COLUMNS.issuperset(document):
        unknown = next(key for key in document if key not in _COLUMNS)
        raise DocumentError(
            f"document {index} has the key {unknown!r}, expected only input_ids, labels, loss_mask; remove the "
            f"key, for a column that is not carried into the batch would be lost"
        )
    if "input_ids" not in document:
        raise DocumentError(f"document {index} has no 'input_ids', expected its token ids; found {sorted(document)}")
    ids = read_column(document["input_ids"], "input_ids", index)
    _refuse(ids, ids < 0, f"document {index}'s input_ids", "a token id of 0 or more")
    if len(document) == 1:
        return ids, ids
    if "labels" in document and "loss_mask" in document:
        raise DocumentError(f"document {index} has both 'labels' and 'loss_mask', expected one; drop the other")
    if "labels" in document:
        labels = _matching(document["labels"], "labels", index, len(ids))
        wrong = _wrong_labels(labels)
        _refuse(labels, wrong, f"document {index}'s labels", f"a token id of 0 or more, or {IGNORE_INDEX}")
        return ids, labels
    mask = _matching(_as_integers(document["loss_mask"]), "loss_mask", index, len(ids))
    _refuse(mask, (mask != 0) & (mask != 1), f"document {index}'s loss_mask", "0 or 1")
    return ids, np.where(mask == 1, ids, IGNORE_INDEX)


def _matching(values: Any, name: str, index: int, length: int) -> Column:
    column = read_column(values, name, index)
    if len(column) != length:
        raise DocumentError(
            f"document {index} has {len(column)} values of {name} for {length} of input_ids, expected as "
            f"many; {name} are unshifted, one for each token"
        )
    return column


def _wrong_labels(labels: Column) -> np.ndarray[Any, np.dtype[np.bool_]]:
    wrong: np.ndarray[Any, np.dtype[np.bool_]] = (labels < 0) & (labels != IGNORE_INDEX)
    return wrong


def _refuse(column: Column, wrong: np.ndarray[Any, Any], what: str, expected: str) -> None:
    if wrong.any():
        token = int(np.flatnonzero(wrong)[0])
        raise DocumentError(
            f"{what}[{token}] is {int(column[token])}, expected {expected}; correct the document before packing"
        )


def _num_slots(num_tokens: int, pad_to: int | None, pad_to_multiple: int | None) -> int:
    if pad_to is not None and pad_to_multiple is not None:
        raise BatchError(
            f"pad_to is {pad_to} and pad_to_multiple is {pad_to_multiple}, expected only one of them; drop the other"
        )
    for name, value in (("pad_to", pad_to), ("pad_to_multiple", pad_to_multiple)):
        if value is not None and (type(value) is not int or not 1 <= value <= INT32_MAX):
            raise BatchError(f"{name} is {value!r}, expected a whole number from 1 to {INT32_MAX}, or None")
    if pad_to is not None:
        if pad_to < num_tokens:
            raise BatchError(
                f"pad_to is {pad_to}, but the documents have {num_tokens} tokens; expected at least that "
                f"many, so raise pad_to or plan rows of that capacity"
            )
        return pad_to
    if pad_to_multiple is not None:
        return -(-num_tokens // pad_to_multiple) * pad_to_multiple
    return num_tokens

"""Documents in, one PackedBatch out.

Algorithm: read each document once, concatenate all of them once, then mask the first token of each document
in one write. Guarantee: inputs are never written to, nothing is kept between calls, no column is lost
without an error, and every error names the document. Price: O(tokens) time, two int64 values of memory for
each token; the batch is on the CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.integers import IntArray, int64_array
from hermetic.batch.packed_batch import PackedBatch
from hermetic.constants import IGNORE_INDEX, INT32_MAX
from hermetic.errors import BatchError, DocumentError

_COLUMNS = ("input_ids", "labels", "loss_mask")


def collate(
    documents: Sequence[Mapping[str, Any]],
    *,
    pad_to: int | None = None,
    pad_to_multiple: int | None = None,
    pad_token_id: int = 0,
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

    Returns:
        A batch of T slots on the CPU. The first token of each document is never supervised, whatever its
        label or mask said, for nothing predicts it.

    Raises:
        BatchError: For no documents, or padding that does not fit.
        DocumentError: If a document has no ``input_ids``, an unknown key, both labels and mask, another
            number of labels than tokens, or values that are not token ids.

    Example:
        >>> collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "loss_mask": [1, 1]}], pad_to=6).labels
        tensor([-100,    6,    7, -100,    9, -100])
    """
    if not documents:
        raise BatchError("there are no documents, expected at least one; skip the batch instead of making an empty one")
    columns = [_read_document(document, index) for index, document in enumerate(documents)]
    boundaries = Boundaries.from_lengths([len(ids) for ids, _ in columns])
    num_slots = _num_slots(boundaries.num_tokens, pad_to, pad_to_multiple)
    if type(pad_token_id) is not int or pad_token_id < 0:
        raise BatchError(
            f"pad_token_id is {pad_token_id!r}, expected a token id of 0 or more; pass the tokenizer's own"
        )
    labels = _stream([labels for _, labels in columns], num_slots, IGNORE_INDEX)
    labels[views.first_tokens_from_lengths(boundaries.document_lengths)] = IGNORE_INDEX
    return PackedBatch(
        input_ids=_stream([ids for ids, _ in columns], num_slots, pad_token_id),
        labels=labels,
        boundaries=boundaries,
    )


def _stream(parts: list[IntArray], num_slots: int, fill: int) -> torch.Tensor:
    """One new tensor that holds the parts end to end, and then the fill."""
    tail = np.full(num_slots - sum(map(len, parts)), fill, dtype=np.int64)
    return torch.from_numpy(np.concatenate([*parts, tail]))


def _as_integers(mask: Any) -> Any:
    """Booleans are the natural type of a mask; everywhere else they are refused as integers."""
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        return mask.to(torch.int64)
    values = np.asarray(mask) if isinstance(mask, list | tuple | np.ndarray) else mask
    return values.astype(np.int64) if isinstance(values, np.ndarray) and values.dtype == np.bool_ else mask


def _read_document(document: Mapping[str, Any], index: int) -> tuple[IntArray, IntArray]:
    """Token ids and labels of equal length."""
    if not isinstance(document, Mapping):
        raise DocumentError(
            f"document {index} is of type {type(document).__name__}, expected a mapping with 'input_ids'; "
            f"wrap the tokens as {{'input_ids': tokens}}"
        )
    unknown = [key for key in document if key not in _COLUMNS]
    if unknown:
        raise DocumentError(
            f"document {index} has the key {unknown[0]!r}, expected only {', '.join(_COLUMNS)}; remove the "
            f"key, for a column that is not carried into the batch would be lost"
        )
    if "input_ids" not in document:
        raise DocumentError(f"document {index} has no 'input_ids', expected its token ids; found {sorted(document)}")
    if "labels" in document and "loss_mask" in document:
        raise DocumentError(f"document {index} has both 'labels' and 'loss_mask', expected one; drop the other")
    ids = _column(document, "input_ids", index)
    _check_range(ids, ids < 0, "input_ids", index, "a token id of 0 or more")
    if "labels" in document:
        labels = _matching(document, "labels", index, len(ids))
        wrong = (labels < 0) & (labels != IGNORE_INDEX)
        _check_range(labels, wrong, "labels", index, f"a token id of 0 or more, or {IGNORE_INDEX}")
        return ids, labels
    if "loss_mask" in document:
        mask = _matching({"loss_mask": _as_integers(document["loss_mask"])}, "loss_mask", index, len(ids))
        _check_range(mask, (mask != 0) & (mask != 1), "loss_mask", index, "0 or 1")
        return ids, np.where(mask == 1, ids, IGNORE_INDEX)
    return ids, ids


def _column(document: Mapping[str, Any], name: str, index: int) -> IntArray:
    return int64_array(document[name], name=f"document {index}'s {name}", ndims=(1,), error=DocumentError)


def _matching(document: Mapping[str, Any], name: str, index: int, length: int) -> IntArray:
    column = _column(document, name, index)
    if len(column) != length:
        raise DocumentError(
            f"document {index} has {len(column)} values of {name} for {length} of input_ids, expected as "
            f"many; {name} are unshifted, one for each token"
        )
    return column


def _check_range(column: IntArray, wrong: np.ndarray[Any, Any], name: str, index: int, expected: str) -> None:
    if wrong.any():
        token = int(np.flatnonzero(wrong)[0])
        raise DocumentError(
            f"document {index}'s {name}[{token}] is {int(column[token])}, expected {expected}; "
            f"correct the document before packing"
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

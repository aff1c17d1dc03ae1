"""The labels of a batch, and which token each of them is.

Algorithm: which way labels are shifted is told by their values: those that equal the token beside them are unshifted,
those that equal the next are shifted, and so on. Guarantee: the best of four offsets counts, and only if it explains
more than half of the supervised labels; labels that are no tokens of their row, as those of masked language modelling,
have none. Price: one comparison of all slots for each offset.
"""

from dataclasses import dataclass

import numpy as np

from hermetic.audit.batch.names import DECODER, LABELS, LOSS_MASK, SHIFTED_LABELS, TOKENS
from hermetic.audit.batch.tensors import BatchTensors, Bools, Ints
from hermetic.audit.reading import rows_of_lists

_OFFSETS = (0, 1, 2, -1)
_IN_ROWS = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labels:
    """One tensor of labels, and which token each of them is."""

    name: str
    values: Ints
    """``[T]``."""
    supervised: Bools
    """``[T]``: carries a loss: not below 0, as -100 and -1 are, and not masked by a loss mask."""
    offset: int | None
    """A label is the token so many slots ahead; ``None`` if the values are not this row's tokens."""


def labels_of(batch: BatchTensors) -> tuple[Labels, ...]:
    """Every tensor of labels of a batch."""
    names = (*SHIFTED_LABELS,) if of_a_decoder(batch) else (*LABELS, *SHIFTED_LABELS)
    return tuple(_labels(batch, name) for name in names if batch.fits(name))


def of_a_decoder(batch: BatchTensors) -> bool:
    """Whether ``labels`` are another row than the tokens, as those of an encoder and decoder are.

    Beside ``decoder_input_ids`` they are. Else they are if they have as many rows as the tokens, of other lengths, and
    less than half of them are the token at their place or one beside it, counted from either end of the row.
    """
    labels, tokens = batch.tensors.get(LABELS[0]), batch.first(TOKENS)
    if labels is None or any(name in batch.tensors for name in DECODER):
        return labels is not None
    if tokens is None or batch.fits(LABELS[0]) or (labels.counts is None and labels.values.ndim != _IN_ROWS):
        return False
    ids, own = (rows_of_lists(batch, tensor) for tensor in (batch.tensors[tokens], labels))
    supervised = sum(int((row >= 0).sum()) for row in own)
    if len(ids) != len(own) or not supervised:
        return False
    same = max(
        sum(_matches(row, of, shift, backwards=backwards) for row, of in zip(own, ids, strict=True))
        for shift in _OFFSETS
        for backwards in (False, True)
    )
    return same <= 0.5 * supervised


def _matches(labels: Ints, ids: Ints, shift: int, *, backwards: bool) -> int:
    """Labels of a row that are the token so many slots ahead, both counted from the first slot or from the last."""
    start = len(ids) - len(labels) if backwards else 0
    there = np.arange(len(labels)) + start + shift
    inside = (there >= 0) & (there < len(ids)) & (labels >= 0)
    return int((labels[inside] == ids[there[inside]]).sum())


def _labels(batch: BatchTensors, name: str) -> Labels:
    values, loss = batch.flat(name), batch.flat(LOSS_MASK)
    assert values is not None  # noqa: S101 - asked for after fits()
    supervised = (values >= 0) & (True if loss is None else loss != 0)
    tokens = batch.first(TOKENS)
    ids = None if tokens is None else batch.flat(tokens)
    default = 1 if name in SHIFTED_LABELS else 0
    return Labels(
        name=name,
        values=values.astype(np.int64),
        supervised=supervised,
        offset=default if ids is None else _offset(batch, ids, values, supervised, default),
    )


def _offset(batch: BatchTensors, ids: Ints, labels: Ints, supervised: Bools, default: int) -> int | None:
    order = [default, *(offset for offset in _OFFSETS if offset != default)]
    shares = [_share(batch, ids, labels, supervised, offset) for offset in order]
    best = max(range(len(order)), key=lambda index: shares[index])
    if not supervised.any():
        return default
    return order[best] if shares[best] > 0.5 else None


def _share(batch: BatchTensors, ids: Ints, labels: Ints, supervised: Bools, offset: int) -> float:
    """Share of the supervised labels that are the token so many slots ahead, of those that have one in their row."""
    slots = np.flatnonzero(supervised)
    there = slots + offset
    row = batch.row_of_slots()[slots]
    inside = (there >= batch.rows[row]) & (there < batch.rows[row + 1])
    same = labels[slots[inside]] == ids[there[inside]]
    return float(same.mean()) if same.size else 0.0

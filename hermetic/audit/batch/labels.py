"""The labels of a batch, and which token each of them is.

Algorithm: which way labels are shifted is told by their values: those that equal the token beside them are unshifted,
those that equal the next are shifted, and so on. Guarantee: the best of four offsets counts, and only if it explains
more than half of the supervised labels; labels that are no tokens of their row, as those of masked language modelling,
have none. Price: one comparison of all slots for each offset.
"""

from dataclasses import dataclass

import numpy as np

from hermetic.audit.batch.names import LABELS, LOSS_MASK, SHIFTED_LABELS, TOKENS
from hermetic.audit.batch.tensors import BatchTensors, Bools, Ints
from hermetic.constants import IGNORE_INDEX

_OFFSETS = (0, 1, 2, -1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labels:
    """One tensor of labels, and which token each of them is."""

    name: str
    values: Ints
    """``[T]``."""
    supervised: Bools
    """``[T]``: carries a loss: not -100, and not masked by a loss mask."""
    offset: int | None
    """A label is the token so many slots ahead; ``None`` if the values are not this row's tokens."""


def labels_of(batch: BatchTensors) -> tuple[Labels, ...]:
    """Every tensor of labels of a batch."""
    return tuple(_labels(batch, name) for name in (*LABELS, *SHIFTED_LABELS) if batch.fits(name))


def _labels(batch: BatchTensors, name: str) -> Labels:
    values, loss = batch.flat(name), batch.flat(LOSS_MASK)
    assert values is not None  # noqa: S101 - asked for after fits()
    supervised = (values != IGNORE_INDEX) & (True if loss is None else loss != 0)
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

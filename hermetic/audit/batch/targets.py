"""Checks of what a batch trains: labels across seams, shifted or not, on padding, on ends of texts, or none at all."""

from collections.abc import Iterator
from functools import reduce

import numpy as np

from hermetic.audit.batch.facts import BatchFacts
from hermetic.audit.batch.labels import Labels
from hermetic.audit.batch.names import LABELS, LENGTHS, SHIFTED_LABELS, TOKENS
from hermetic.audit.batch.tensors import Bools, Ints
from hermetic.audit.finding import AuditFinding

_TRANSFORMERS = "input_ids"
"""A model that takes this name shifts ``labels`` itself."""


def _agreed_seams(facts: BatchFacts) -> Bools:
    """Seams that every view has; where views disagree another finding says so."""
    return reduce(np.logical_and, (view.starts for view in facts.views), facts.seams)


def across_seams(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM401: the last token of a document learns the first token of the next."""
    seams = _agreed_seams(facts)
    for labels in facts.labels:
        if labels.offset not in {0, 1}:
            continue
        at = seams if labels.offset == 0 else np.append(seams[1:], False)
        wrong = at & labels.supervised
        wrapped = _wrapped(facts, labels) if labels.offset == 1 else np.zeros_like(wrong)
        if (wrong | wrapped).any():
            slot = int(np.argmax(wrong | wrapped))
            which = "first token of each document" if labels.offset == 0 else "last token of each document"
            around = " and the last of a row the first of that row" if wrapped.any() else ""
            column = bool(facts.views) and all(view.name in LENGTHS for view in facts.views)
            yield facts.finding(
                "HM401",
                labels.name,
                certainty="likely" if column else "certain",  # a collator may still mask it, as TRL's does
                what="the last token of a document is trained to predict the first token of the next one"
                f"{around}: {labels.name} is {labels.values[slot]} at {facts.batch.where(slot)}",
                value=f"{int(wrong.sum())} of {int(seams.sum())} seams",
                way_out=f"Set {labels.name} to -100 at the {which}: hermetic.batch.dialects.shift_labels does",
            )


def _wrapped(facts: BatchFacts, labels: Labels) -> Bools:
    """Last slots of packed rows whose label is the row's first token, as torch.roll makes it."""
    batch = facts.batch
    tokens = batch.first(TOKENS)
    ids = None if tokens is None else batch.flat(tokens)
    wrapped = np.zeros(batch.num_slots, dtype=np.bool_)
    for low, high in zip(batch.rows, batch.rows[1:], strict=False):
        if ids is not None and high > low and facts.seams[low:high].any():
            wrapped[high - 1] = bool(labels.supervised[high - 1]) and labels.values[high - 1] == ids[low]
    return wrapped


def shifted_twice(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM403: labels that are shifted already where a model shifts them, or that were shifted twice."""
    for labels in facts.labels:
        again = labels.name in LABELS and labels.offset == 1 and facts.batch.first(TOKENS) == _TRANSFORMERS
        if not again and labels.offset != 2:
            continue
        yield facts.finding(
            "HM403",
            labels.name,
            certainty="certain" if labels.offset == 2 else "likely",
            what=f"{labels.name} hold the token {'after the next' if labels.offset == 2 else 'next to theirs'}"
            f"{'' if labels.offset == 2 else ', and models of transformers shift them once more'}",
            value=f"{int(labels.supervised.sum())} labels",
            way_out="Pass labels unshifted, as copies of input_ids with -100 where nothing is to be learned; what is "
            "shifted already goes under shift_labels",
        )


def shifted_back(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM460: labels that hold the token before theirs."""
    for labels in facts.labels:
        if labels.offset == -1:
            yield facts.finding(
                "HM460",
                labels.name,
                what=f"{labels.name} hold the token before theirs: they were shifted the wrong way",
                value=f"{int(labels.supervised.sum())} labels",
                way_out="Pass labels as copies of input_ids with -100 where nothing is to be learned",
            )


def on_padding(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM461: labels on padded slots."""
    for labels in facts.labels:
        wrong = labels.supervised & ~facts.real
        if labels.offset is not None and wrong.any():
            slot = int(np.argmax(wrong))
            yield facts.finding(
                "HM461",
                labels.name,
                what=f"{labels.name} is {labels.values[slot]} on padding, at {facts.batch.where(slot)}",
                value=f"{int(wrong.sum())} labels",
                way_out="Set labels to -100 where there is padding, by position and not by the value of a token",
            )


def none_at_all(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM462: no token of the batch is supervised."""
    for labels in facts.labels:
        if not labels.supervised.any():
            yield facts.finding(
                "HM462",
                labels.name,
                what=f"no label of {labels.name} counts: a mean over them is 0 divided by 0",
                value=f"{labels.values.size} slots",
                way_out="Count supervised tokens after truncation, and leave such batches out or divide by at least 1",
            )


def ends_masked_by_value(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM463: a token that ends texts is masked wherever it stands, for it is also the one that pads."""
    tokens = facts.batch.first(TOKENS)
    ids = None if tokens is None else facts.batch.flat(tokens)
    labels = next((labels for labels in facts.labels if labels.offset == 0), None)
    if ids is None or labels is None:
        return
    taught = np.concatenate([[False], labels.supervised[:-1]]) & facts.real & ~facts.starts
    for token in sorted({*np.unique(ids[~facts.real]).tolist(), *_blank_tails(facts, ids, labels), *facts.ends}):
        here = facts.real & (ids == token)
        hidden = here & taught
        if here.any() and hidden.any() and not (here & labels.supervised).any():
            slot = int(np.argmax(hidden))
            yield facts.finding(
                "HM463",
                labels.name,
                certainty="likely",
                what=f"token {token}, which {'ends texts' if token in facts.ends else 'pads this batch'}, has no label "
                f"anywhere, not even after supervised tokens such as at {facts.batch.where(slot)}: no document is "
                "trained to stop",
                value=f"{int(hidden.sum())} tokens",
                way_out="Mask padding by position, not by value, so that ends of documents keep their labels",
            )


def _blank_tails(facts: BatchFacts, ids: Ints, labels: Labels) -> Iterator[int]:
    """Ids that fill the last document of a packed row, twice or more, without a label: padding, as it seems."""
    starts = np.flatnonzero(facts.seams)
    for high in facts.batch.rows[1:] if facts.batch.tail is None else ():
        low = int(starts[np.searchsorted(starts, high) - 1]) if starts.size else 0
        blank = low + 1 < high and facts.seams[low] and not labels.supervised[low:high].any()
        if blank and (ids[low:high] == ids[low]).all():
            yield int(ids[low])


def two_disagree(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM464: labels and shifted labels that are not the same, one slot apart."""
    unshifted = next((labels for labels in facts.labels if labels.name in LABELS and labels.offset == 0), None)
    shifted = next((labels for labels in facts.labels if labels.name in SHIFTED_LABELS), None)
    if unshifted is None or shifted is None or shifted.offset not in {1, None}:
        return
    inside = ~facts.batch.row_starts() & ~facts.seams
    wrong = inside[1:] & (unshifted.values[1:] != shifted.values[:-1])
    if wrong.any():
        slot = int(np.argmax(wrong))
        yield facts.finding(
            "HM464",
            shifted.name,
            what=f"{shifted.name} is {shifted.values[slot]} at {facts.batch.where(slot)}, and {unshifted.name} is "
            f"{unshifted.values[slot + 1]} one slot later",
            value=f"{int(wrong.sum())} slots",
            way_out="Make one from the other: hermetic.batch.dialects.shift_labels",
        )


def no_boundaries(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM602: nothing says where documents start, and rows look like several."""
    if facts.packed or facts.views[1:] or any(view.starts[~facts.starts].any() for view in facts.views):
        return
    tokens = facts.batch.first(TOKENS)
    ids = None if tokens is None else facts.batch.flat(tokens)
    if ids is None:
        return
    said, slots = _looks_packed(facts, ids)
    if slots.size:
        yield facts.finding(
            "HM602",
            str(tokens),
            certainty="likely",
            what=f"nothing says where documents start, and rows look like several: {said} at "
            f"{', '.join(facts.batch.where(int(slot)) for slot in slots[:3])}",
            value=f"{len(slots)} places",
            way_out="Carry the boundaries from where they are known: position_ids that restart, or seq_lengths kept in "
            "the columns of the data set",
        )


def _looks_packed(facts: BatchFacts, ids: Ints) -> tuple[str, Ints]:
    """Ends of texts inside rows; or lone labels that are hidden in rows that are supervised all over."""
    more = facts.real & np.append(facts.real[1:] & ~facts.starts[1:], False)
    ending = more & np.isin(ids, list(facts.ends))
    after = np.append(ids[1:], -1)
    inner = np.flatnonzero(ending & ~np.isin(after, list(facts.ends)))
    if inner.size:
        return "ends of texts", inner
    labels = next((labels for labels in facts.labels if labels.offset == 0), None)
    if labels is None:
        return "", inner
    starts = np.append(facts.batch.row_starts(), True)
    around = ~starts[:-1] & ~starts[1:]  # within its row
    around[1:-1] &= labels.supervised[:-2] & labels.supervised[2:]
    lone = np.flatnonzero(around & ~labels.supervised & facts.real)
    mostly = labels.supervised.sum() > 0.5 * facts.real.sum()
    one_kind = len(np.unique(ids[lone])) == 1 and len(lone) > 1  # one token hidden wherever it stands is no seam
    return "single tokens without a label between supervised ones", lone if mostly and not one_kind else inner


def supervised(facts: BatchFacts) -> int | None:
    """Supervised tokens of a batch; ``None`` without labels."""
    found = facts.labels
    return int((found[0].supervised & facts.real).sum()) if found else None


def silent_documents(facts: BatchFacts) -> int | None:
    """Documents without a supervised token; ``None`` without unshifted labels."""
    found = next((labels for labels in facts.labels if labels.offset == 0), None)
    if found is None:
        return None
    number = np.cumsum(facts.starts)
    taught = np.unique(number[found.supervised & facts.real & ~facts.starts])
    return len(facts.lengths) - len(taught)

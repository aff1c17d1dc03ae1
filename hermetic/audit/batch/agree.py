"""Checks of one view against another: the same documents, a tail that is one segment, positions that restart."""

from collections.abc import Iterator

import numpy as np

from hermetic.audit.batch.facts import BatchFacts, View, after_padding, listed, text_positions
from hermetic.audit.batch.names import FLASH, LABELS, MASK, PADDED_EDGES, PAST, POSITIONS, TOKENS
from hermetic.audit.batch.tensors import Bools, Ints
from hermetic.audit.finding import AuditFinding
from hermetic.audit.reading import edges_by_minimum, edges_by_steps, stream_edges, text_plane
from hermetic.constants import IGNORE_INDEX

_STARTS_IN_USE = (0, 2)
"""Of most models, and of those of RoBERTa's kind, which count from the padding token's id, 1, plus 1."""


def _expected(facts: BatchFacts, view: View) -> Bools:
    """Where documents start by a view, in slots that are real by all views."""
    starts: Bools = facts.real & (view.starts | after_padding(facts.batch, facts.real))
    return starts


def contradictions(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM603: two views of one batch have other documents."""
    differing: dict[int, list[View]] = {}
    for view in facts.views[1:]:
        differ = facts.starts != _expected(facts, view)
        if differ.any() and not _only_positions_are_wrong(facts, view):
            differing.setdefault(int(np.argmax(differ)), []).append(view)
    for slot, views in differing.items():
        first = facts.views[0].name
        here, there = ("starts", "goes on") if facts.starts[slot] else ("goes on", "starts")
        others = ", ".join(f"{view.name}{_value(facts, view.name, slot)}" for view in views)
        yield facts.finding(
            "HM603",
            first,
            what=f"{first} and {views[0].name} have different documents: at {facts.batch.where(slot)} a document "
            f"{here} by {first}{_value(facts, first, slot)} and {there} by {others}",
            value=f"{int((facts.starts != _expected(facts, views[0])).sum())} of {int(facts.real.sum())} tokens",
            way_out="Derive all of them from one list of lengths, as PackedBatch.model_inputs() does",
        )
    yield from _without_room(facts)


def _value(facts: BatchFacts, name: str, slot: int) -> str:
    """What stands there, for tensors of one value a token."""
    values = facts.batch.flat(name)
    return "" if values is None else f" ({values[slot]})"


def _without_room(facts: BatchFacts) -> Iterator[AuditFinding]:
    """Edges in real tokens that do not fit those in slots."""
    tensors = facts.batch.tensors
    for padded, real in PADDED_EDGES.items():
        if padded not in tensors or real not in tensors:
            continue
        rooms, lengths = (np.diff(stream_edges(facts.batch, tensors[name])) for name in (padded, real))
        same = len(rooms) == len(lengths)
        over = np.flatnonzero(lengths > rooms) if same else np.zeros(0, dtype=np.int64)
        if same and not over.size:
            continue
        told = (
            f"document {over[0]} has {lengths[over[0]]} tokens in room for {rooms[over[0]]}"
            if same
            else f"{len(lengths)} documents by {real} and {len(rooms)} by {padded}"
        )
        yield facts.finding(
            "HM603",
            padded,
            what=f"{real} and {padded} do not fit each other: {told}",
            value=listed(stream_edges(facts.batch, tensors[padded]).tolist()),
            way_out="Make both from the same lengths, the second from the lengths rounded up",
        )


def _only_positions_are_wrong(facts: BatchFacts, view: View) -> bool:
    """Positions that only fail to restart, or only jump, have codes of their own."""
    if view.name not in POSITIONS:
        return False
    restarts = _expected(facts, view)
    lacking, more = facts.starts & ~restarts, restarts & ~facts.starts
    if not more.any():
        return True
    found = text_positions(facts)
    if lacking.any() or found is None:
        return False
    return not np.isin(found[1][more], found[1][facts.starts]).any()


def not_reset(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM201: positions count on where another view starts a document."""
    view = next((view for view in facts.views[1:] if view.name in POSITIONS), None)
    if view is None or not _only_positions_are_wrong(facts, view):
        return
    lacking = facts.starts & ~_expected(facts, view)
    if lacking.any():
        slot = int(np.argmax(lacking))
        source = facts.views[0].name
        yield facts.finding(
            "HM201",
            view.name,
            what=f"{view.name} count on at {facts.batch.where(slot)}{_value(facts, view.name, slot)}, where a document "
            f"starts by {source}",
            value=f"{int(lacking.sum())} of {int(facts.seams.sum())} documents inside rows",
            way_out="Let positions start anew with each document: Boundaries.position_ids",
        )


def jumps(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM261: positions that do not count by one inside a document."""
    view = next((view for view in facts.views[1:] if view.name in POSITIONS), None)
    found = text_positions(facts)
    if view is None or found is None or not _only_positions_are_wrong(facts, view):
        return
    inside = _expected(facts, view) & ~facts.starts
    if inside.any():
        slot = int(np.argmax(inside))
        name, positions = found
        yield facts.finding(
            "HM261",
            name,
            what=f"{name} go from {positions[slot - 1]} to {positions[slot]} at {facts.batch.where(slot)}, inside a "
            f"document of {facts.views[0].name}: those who look at steps start a document there",
            value=f"{int(inside.sum())} tokens",
            way_out="Count positions by one in each document: Boundaries.position_ids",
        )


def first_positions(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM262: documents that start at different positions, or all at one that no model counts from."""
    found = text_positions(facts)
    if found is None or facts.batch.settings.get(PAST):
        return
    name, positions = found
    slots = np.flatnonzero(facts.starts & _restarts(facts, positions))
    firsts = positions[slots]
    values, counts = np.unique(firsts, return_counts=True)
    if not slots.size or (len(values) == 1 and values[0] in _STARTS_IN_USE):
        return
    used = values[np.isin(values, _STARTS_IN_USE)]
    usual = int(used[0]) if used.size else int(values[np.argmax(counts)])
    odd = slots[firsts != usual]
    slot = int(odd[0]) if odd.size else int(slots[0])
    expected = f"others start at {usual}" if odd.size else "models count from 0, those of RoBERTa's kind from 2"
    yield facts.finding(
        "HM262",
        name,
        certainty="likely",
        what=f"{name} start a document at {positions[slot]} at {facts.batch.where(slot)}; {expected}",
        value=listed(firsts.tolist()),
        way_out="Start each document at 0, or at the model's padding id plus 1; count no padding",
    )


def _restarts(facts: BatchFacts, positions: Ints) -> Bools:
    """``[T]``: slots where positions do not count on; a document that they run into is HM201's."""
    steps = np.concatenate([[True], np.diff(positions) != 1])
    restarts: Bools = steps | after_padding(facts.batch, facts.real)
    return restarts


def _padded_runs(facts: BatchFacts) -> Iterator[tuple[int, int]]:
    """From where to where rows end in padding that some view names."""
    if any(name in facts.batch.tensors for name in PADDED_EDGES):
        return  # rooms: each document has padding of its own
    for low, high in zip(facts.batch.rows, facts.batch.rows[1:], strict=False):
        real = np.flatnonzero(facts.real[low:high])
        end = int(low) + int(real[-1]) + 1 if real.size else int(low)
        if end < high:
            yield end, int(high)


def _tail_views(facts: BatchFacts) -> Iterator[View]:
    """Views in which padding would be documents: of positions only those that transformers looks at."""
    mask = facts.batch.flat(MASK)
    hidden = (mask is not None and not mask.all()) or text_positions(facts) is None
    unread = POSITIONS if hidden else POSITIONS[1:]
    return (view for view in facts.views if view.name not in unread and view.name != MASK)


def merged_tail(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM166: padding that belongs to the last document of its row."""
    runs = list(_padded_runs(facts))
    starts_of_rows = set(facts.batch.rows.tolist())
    for view in _tail_views(facts):
        merged = [
            first for first, _ in runs if view.real[first] and not view.starts[first] and first not in starts_of_rows
        ]
        if merged:
            yield facts.finding(
                "HM166",
                view.name,
                what=f"by {view.name} the padding from {facts.batch.where(merged[0])} on belongs to the document "
                f"before it{_value(facts, view.name, merged[0])}",
                value=f"{len(merged)} rows",
                way_out="Make the padded tail one more segment at the end of the row, or no part of any",
            )


def split_tail(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM167: a document for each pad token."""
    runs = list(_padded_runs(facts))
    certain = bool(runs)
    if not certain:
        runs = list(_blank_runs(facts))
    for view in _tail_views(facts):
        split = [
            (low, high)
            for low, high in runs
            if high - low > 1 and view.real[low:high].all() and view.starts[low + 1 : high].any()
        ]
        if split:
            low, high = split[0]
            many = int(view.starts[low:high].sum())
            yield facts.finding(
                "HM167",
                view.name,
                certainty="certain" if certain else "likely",
                what=f"by {view.name} the {high - low} padded slots from {facts.batch.where(low)} on are {many} "
                "documents",
                value=f"{sum(int(view.starts[low:high].sum()) for low, high in split)} documents of padding",
                way_out="Make the tail one segment: positions that count from 0 to its end, and a single last edge",
            )


def _blank_runs(facts: BatchFacts) -> Iterator[tuple[int, int]]:
    """Ends of rows with two slots or more that are a document each, hold one id and no label: padding, as it seems.

    None of a batch that knows its tail.
    """
    batch = facts.batch
    tokens = batch.first(TOKENS)
    ids = None if tokens is None else batch.flat(tokens)
    labels = batch.flat(LABELS[0])
    if ids is None or batch.tail is not None:
        return
    last = np.maximum(batch.rows[1:][batch.row_of_slots()] - 1, 0)
    blank = facts.starts & (ids == ids[last]) & ((labels == IGNORE_INDEX) if labels is not None else True)
    for low, high in zip(batch.rows, batch.rows[1:], strict=False):
        others = np.flatnonzero(~blank[low:high])
        first = int(low) + (int(others[-1]) + 1 if others.size else 1)
        if high - first > 1:
            yield first, int(high)


def helpers_differ(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM168: the two helpers of transformers read other documents from these positions."""
    batch, found = facts.batch, text_positions(facts)
    told = all(name in batch.tensors or name in batch.settings for name in FLASH)
    mask = batch.tensors.get(MASK)
    hidden = mask is not None and (mask.values.ndim > 2 or not mask.values.all())
    if found is None or found[0] != POSITIONS[0] or told or hidden:
        return
    name, positions = found
    rows = np.split(positions, batch.rows[1:-1])
    for index, row in enumerate(rows):
        steps = edges_by_steps(row)
        flash = edges_by_minimum(row) if len(rows) == 1 else (0, len(row))
        if steps != flash:
            several = "reads one row only and takes it for one document" if len(rows) > 1 else "at the smallest of them"
            yield facts.finding(
                "HM168",
                name,
                certainty="depends on version",
                versions="transformers up to 5.24, with flash attention",
                what=f"{name} of row {index} have documents at {listed(steps)} for sdpa, eager and flex, where the "
                f"step is not +1; flash attention {several}: {listed(flash)}",
                value=listed(row.tolist(), 16),
                way_out="Start every document at the same position, in one flat row, with padding as one segment; or "
                "pass all of cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k",
            )
            return


def planes_without_text(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM171: packed documents under multi-axis positions that have no plane for text."""
    batch = facts.batch
    name = next((name for name in POSITIONS if name in batch.tensors), None)
    if name is None or batch.tensors[name].values.ndim != 3 or not facts.packed or MASK in batch.tensors:
        return
    planes = batch.tensors[name].values
    seams = facts.seams.copy()
    for low, high in _blank_runs(facts):
        seams[low:high] = False  # padding, as it seems, and nobody looks at it
    told = all(name in batch.tensors or name in batch.settings for name in FLASH)
    if seams.any() and len(planes) > 1 and text_plane(planes) is None:
        yield facts.finding(
            "HM171",
            name,
            certainty="depends on version",
            versions="transformers 5, with models of Qwen2-VL's kind"
            f"{', but for flash attention, which takes the edges' if told else ''}",
            what=f"{name} have {len(planes)} planes and none for text: transformers then looks for no documents",
            value=f"shape {list(planes.shape)}",
            way_out="Put a plane in front that counts tokens from 0 in each document: [text, time, height, width]",
        )

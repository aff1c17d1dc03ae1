"""Checks of edges, lengths and numbers by themselves: what a kernel would refuse, misread, or read past."""

from collections.abc import Iterator

import numpy as np

from hermetic.audit.batch.facts import BatchFacts, distinct_edges, is_padding, listed
from hermetic.audit.batch.names import EDGES, FLASH, LENGTHS, LONGEST, NUMBERS, PADDED_EDGES, TOKENS
from hermetic.audit.batch.tensors import Ints
from hermetic.audit.finding import AuditFinding
from hermetic.audit.reading import rows_of_lists, stream_edges

_WITH_INT32 = (*EDGES, *PADDED_EDGES, "seq_idx")
_ALSO_64_BITS = "cu_seqlens"
"""What flash-linear-attention calls its edges, too, and takes as 64-bit integers."""


def _all_edges(facts: BatchFacts) -> Iterator[tuple[str, Ints]]:
    """Edges in each row's own count where they are stacked, else over the stream."""
    for tensor in distinct_edges(facts.batch):
        stacked = tensor.counts is not None or tensor.values.ndim > 1
        rows = rows_of_lists(facts.batch, tensor) if stacked else [stream_edges(facts.batch, tensor)]
        for index, row in enumerate(rows):
            yield tensor.name + (f"[{index}]" if len(rows) > 1 else ""), row


def leading_zero(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM160: edges that do not start at 0."""
    for name, edges in _all_edges(facts):
        if not edges.size or edges[0] != 0:
            tokens = f"the first {edges[0]} tokens are" if edges.size else "every token is"
            yield facts.finding(
                "HM160",
                name,
                what=f"{name} does not start at 0, so {tokens} in no document",
                value=listed(edges.tolist()) or "empty",
                way_out="Put the missing 0 in front: one edge more than there are documents",
            )


def falling(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM161: edges that fall, such as those filled up with -1."""
    for name, edges in _all_edges(facts):
        falls = np.flatnonzero(np.diff(edges) < 0)
        if falls.size:
            index = int(falls[0]) + 1
            yield facts.finding(
                "HM161",
                name,
                what=f"{name}[{index}] is {edges[index]}, below the edge {edges[index - 1]} before it",
                value=listed(edges.tolist()),
                way_out="Make the edges by a cumulative sum of lengths; to fill them up, repeat the last one",
            )


def last_edge(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM162: edges that end before or after the tokens, and lengths that sum to more."""
    batch = facts.batch
    for tensor in distinct_edges(batch):
        edges = stream_edges(batch, tensor)
        end = int(edges[-1]) if edges.size else 0
        if end == batch.num_slots or (edges.size and (np.diff(edges) < 0).any()):
            continue
        beyond = end > batch.num_slots
        told = "kernels read past the tensor" if beyond else "the rest is in no document, and kernels never write it"
        yield facts.finding(
            "HM162",
            tensor.name,
            what=f"{tensor.name} ends at {end}, and the batch has {batch.num_slots} tokens: {told}",
            value=listed(edges.tolist()),
            way_out="End the edges at the number of tokens; a padded tail is one more segment at the end",
        )
    yield from _lengths_beyond(facts)


def _lengths_beyond(facts: BatchFacts) -> Iterator[AuditFinding]:
    batch = facts.batch
    for name in (name for name in LENGTHS if name in batch.tensors):
        sums = np.array([int(row.sum()) for row in rows_of_lists(batch, batch.tensors[name])])
        widths = np.diff(batch.rows)
        wrong = np.flatnonzero(sums > widths) if len(sums) == len(widths) else np.zeros(1, dtype=np.int64)
        if wrong.size:
            row = int(wrong[0])
            found = f"{sums[row]} tokens in row {row}, which has {widths[row]}" if len(sums) == len(widths) else ""
            yield facts.finding(
                "HM162",
                name,
                what=f"{name} holds {found or f'{len(sums)} lists, and the batch has {len(widths)} rows'}",
                value=listed(sums.tolist()),
                way_out="Take the lengths from the very documents that were put into the row",
            )


def kernel_dtype(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM163: edges or numbers that are not int32, or on another device than the tokens."""
    tokens = facts.batch.first(TOKENS)
    home = facts.batch.tensors[tokens].device if tokens else None
    for name in (name for name in _WITH_INT32 if name in facts.batch.tensors):
        tensor = facts.batch.tensors[name]
        wrong = tensor.dtype is not None and not tensor.dtype.endswith("int32")
        away = home is not None and tensor.device is not None and tensor.device != home
        if wrong or away:
            found = tensor.dtype if wrong else f"on {tensor.device}, with the tokens on {home}"
            some = name == _ALSO_64_BITS and not away
            yield facts.finding(
                "HM163",
                name,
                certainty="depends on version" if some else "certain",
                versions="flash-attention and its like; flash-linear-attention takes 64 bits" if some else None,
                what=f"{name} is {found}, and variable-length kernels read int32 beside the tokens",
                value=f"{found}",
                way_out=f"Make it once in the collator: torch.as_tensor({name}, dtype=torch.int32), and move it with "
                "the batch",
            )


def all_four(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM164: some of the four arguments of transformers' flash attention, which takes all of them or none."""
    given = [name for name in FLASH if name in facts.batch.tensors or name in facts.batch.settings]
    if given and len(given) < len(FLASH):
        missing = [name for name in FLASH if name not in given]
        yield facts.finding(
            "HM164",
            given[0],
            what=f"{', '.join(given)} without {', '.join(missing)}: transformers then looks at positions instead",
            value=", ".join(given),
            way_out="Pass all four, as PackedBatch.model_inputs() does, or none of them and positions that restart",
        )


def numbers_come_back(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM165: the number of a document stands at two places of a row."""
    batch = facts.batch
    for name in NUMBERS:
        numbers = batch.flat(name)
        if numbers is None:
            continue
        changes = batch.row_starts() | np.concatenate([[True], np.diff(numbers) != 0])
        slots = np.flatnonzero(changes & ~is_padding(batch, name, numbers))
        keys = np.stack([batch.row_of_slots()[slots], numbers[slots]])
        _, first = np.unique(keys, axis=1, return_index=True)
        again = np.setdiff1d(np.arange(len(slots)), first)
        if again.size:
            slot = int(slots[again[0]])
            yield facts.finding(
                "HM165",
                name,
                what=f"{name} comes back to document {numbers[slot]} at {batch.where(slot)} after another document: "
                "those who compare numbers join the two, those who look for changes part them",
                value=f"{len(again)} of {len(slots)} runs of equal numbers",
                way_out="Number the documents of a row in their order, each number once",
            )


def rows_joined(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM169: edges over the stream in which a document runs on into the next row."""
    batch = facts.batch
    for tensor in distinct_edges(batch):
        edges = stream_edges(batch, tensor)
        missing = np.setdiff1d(batch.rows[1:-1], edges)
        if missing.size and edges.size and int(edges[-1]) >= int(missing[0]):
            row = int(np.searchsorted(batch.rows, missing[0]))
            yield facts.finding(
                "HM169",
                tensor.name,
                what=f"{tensor.name} has no edge at {missing[0]}, where row {row} starts: a document runs on from row "
                f"{row - 1} into row {row}",
                value=listed(edges.tolist()),
                way_out="Count edges over all rows in one stream, with an edge at each row's start",
            )


def longest(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM260: a longest length below the longest document."""
    batch = facts.batch
    for name, of in LONGEST.items():
        padded = next((padded for padded, real in PADDED_EDGES.items() if real == of), "")
        tensor = batch.tensors.get(padded) or batch.tensors.get(of)
        if name not in batch.settings or tensor is None:
            continue
        edges = stream_edges(batch, tensor)
        needed = int(np.diff(edges).max(initial=0))
        if batch.settings[name] < needed:
            yield facts.finding(
                "HM260",
                name,
                what=f"{name} is {batch.settings[name]}, and the longest document has {needed} tokens: a kernel leaves "
                "out what lies beyond",
                value=f"{batch.settings[name]}",
                way_out=f"Compute it from the same edges: max(diff({tensor.name}))",
            )

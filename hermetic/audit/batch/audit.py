"""The audit of one batch: what its tensors say about documents, whether they agree, and what would go wrong.

Algorithm: every tensor with a known name is read to the documents that it describes; small pure checks look at one or
two of them. Guarantee: nothing is run and nothing is changed; a batch that :class:`hermetic.PackedBatch` makes, and
every dialect that this library writes, has no finding. Price: O(slots) for each tensor, O(S * S) for a mask over pairs.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from hermetic.audit.batch.checks import CHECKS
from hermetic.audit.batch.facts import BatchFacts, facts_of, first_real, listed
from hermetic.audit.batch.files import read_batch
from hermetic.audit.batch.names import POSITIONS
from hermetic.audit.batch.sizes import LARGEST_SQUARE
from hermetic.audit.batch.targets import silent_documents, supervised
from hermetic.audit.batch.tensors import BatchTensors, tensors_of
from hermetic.audit.finding import AuditFinding, AuditReport
from hermetic.audit.reading import readings


def audit_batch(
    batch: Any,
    *,
    name: str | None = None,
    ends: Collection[int] = (),
    heads: int | None = None,
    head_dim: int | None = None,
) -> AuditReport:
    """Audit one batch, in memory or in a file.

    Args:
        batch: A ``PackedBatch``; a mapping of tensors, arrays or nested lists, such as a collator returns; or the path
            of a safetensors, ``.npz``, Arrow, Parquet, JSON or JSON Lines file of one batch, or of rows with lists.
        name: What the report calls it. Default: the file's name, or the class.
        ends: Ids of tokens that end a text, by which rows without boundaries are judged.
        heads: Attention heads, for the limit of 32-bit offsets.
        head_dim: Elements of each head, likewise.

    Returns:
        Findings, and as facts the rows, documents, utilization, supervised tokens, the share of tokens that would see
        a stranger under a plain causal mask, and what each backend reads.

    Raises:
        AuditError: If it cannot be read; the message names file, tensor, what was found and what was expected.
        MissingDependencyError: For a safetensors file, if safetensors is not installed.

    Example:
        >>> report = audit_batch({"input_ids": [[5, 6, 7, 8]], "cu_seqlens": [2, 4]})
        >>> [finding.code for finding in report.findings]
        ['HM160']
    """
    if isinstance(batch, str | os.PathLike):
        tensors = read_batch(Path(batch), name=name)
    else:
        tensors = tensors_of(batch, name=name)
    beyond = _beyond(tensors)
    if beyond:
        return AuditReport(
            subject=tensors.subject,
            kind="batch",
            stack=None,
            findings=beyond,
            notes=("the batch is beyond what can be counted; nothing else of it was looked at",),
        )
    facts = facts_of(tensors, ends=ends, heads=heads, head_dim=head_dim)
    return AuditReport(
        subject=tensors.subject,
        kind="batch",
        stack=None,
        findings=tuple(finding for check in CHECKS.values() for finding in check(facts)),
        facts=tuple(_facts(facts)),
        notes=tuple(_notes(facts)),
    )


def _beyond(tensors: BatchTensors) -> tuple[AuditFinding, ...]:
    """What is too large for a closer look."""
    nothing = np.zeros(0, dtype=np.bool_)
    sizes = BatchFacts(batch=tensors, views=(), starts=nothing, real=nothing)
    return tuple(finding for code in ("HM760", "HM761") for finding in CHECKS[code](sizes))


def _facts(facts: BatchFacts) -> list[tuple[str, str]]:
    batch, lengths = facts.batch, facts.lengths
    tokens = int(lengths.sum())
    said = facts.views[0].name if facts.views else "the rows alone"
    found = [
        ("rows", batch.shape),
        ("documents", f"{len(lengths):,} by {said}: {listed(lengths.tolist(), 16)} tokens"),
        ("utilization", f"{tokens / batch.num_slots:.1%} of {batch.num_slots:,} slots"),
        ("contaminated if read naively", f"{_contaminated(facts):.1%} of tokens would see another document"),
    ]
    labelled, silent = supervised(facts), silent_documents(facts)
    if labelled is not None:
        without = f"; {silent:,} documents have none" if silent else ""
        found.append(("supervised", f"{labelled:,} of {tokens:,} tokens{without}"))
    found += [(f"read by {reading.name}", _read(reading.documents)) for reading in readings(batch)]
    return found


def _contaminated(facts: BatchFacts) -> float:
    """Share of real tokens that do not belong to the first document of their row."""
    real = int(facts.real.sum())
    if not real:
        return 0.0
    in_row = np.cumsum(facts.starts)
    first = in_row[np.flatnonzero(first_real(facts.batch, facts.real))]
    return 1.0 - float(np.isin(in_row[facts.real], first).sum()) / real


def _read(documents: tuple[tuple[int, ...], ...] | None) -> str:
    if documents is None:
        return "nothing"
    count = sum(max(len(row) - 1, 0) for row in documents)
    rows = "; ".join(listed(row) for row in documents[:4])
    return f"{count:,} document{'' if count == 1 else 's'}, edges {rows}{'; ...' if len(documents) > 4 else ''}"


def _notes(facts: BatchFacts) -> list[str]:
    notes = []
    if not facts.views:
        notes.append("nothing in the batch says where documents start: each row was taken for one document")
    elif facts.packed and not any(name in facts.batch.tensors for name in POSITIONS):
        notes.append("no position_ids: a model that makes its own counts through the row, whatever isolates documents")
    widest = int(np.diff(facts.batch.rows).max())
    if widest > LARGEST_SQUARE:
        notes.append(
            f"rows of {widest:,} tokens: a table over pairs of tokens has more cells than 32-bit arithmetic counts"
        )
    return notes

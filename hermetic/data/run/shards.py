"""The task that gathers rows from the parts and writes one file of the packed folder.

Algorithm: the pieces of a shard's rows are visited part by part and, within a part, in the order in which they lie, and
copied from the mapped part to their place in the rows. Guarantee: the first token of each piece is unsupervised, also
where a policy cut a document in two; the file appears whole or not at all, and its bytes depend on the plan and the
parts alone. Price: 8 bytes a token of one shard, and the mapped pages of one part at a time.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from hermetic.constants import IGNORE_INDEX
from hermetic.data.run.corpus import Corpus, Draw
from hermetic.data.run.part_files import PartReceipt, open_part
from hermetic.data.run.receipts import read_receipt, write_receipt
from hermetic.data.run.table import write_table
from hermetic.data.run.work import WorkFolder
from hermetic.data.sources import sha256_of_file
from hermetic.plan import Plan

__all__ = ["ShardReceipt", "ShardTask", "finished_shard", "shard_task", "shard_tasks"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
Int32Array: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """``[F]`` each: what to copy into rows, one piece after the other."""

    part: IndexArray
    """Which of the task's parts."""

    place: IndexArray
    """Which document of the part."""

    start: IndexArray
    """The first token, counted from the part's first."""

    length: IndexArray
    document: IndexArray
    """0-based, over all documents read."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardTask:
    """One file of rows to write."""

    run: str
    """The run that it belongs to, by the hash of all that decides its rows."""

    name: str
    pieces: Pieces
    documents_per_row: IndexArray
    """``[B]``."""

    parts: tuple[PartReceipt, ...]
    """Those that the pieces are in; what they skipped is left out."""

    file_of_part: tuple[int, ...]
    parts_folder: str
    rows_folder: str
    receipts_folder: str
    with_roles: bool
    file_format: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReceipt:
    """What is in a finished file of rows."""

    run: str
    name: str
    sha256: str
    rows: int
    documents: int
    tokens: int
    supervised_tokens: int
    documents_without_supervision: int


def shard_tasks(
    corpus: Corpus, draw: Draw, plan: Plan, *, run: str, work: WorkFolder, shard_tokens: int, file_format: str
) -> list[ShardTask]:
    """Cut the rows of a plan into files of about ``shard_tokens`` slots.

    The tasks share the plan's arrays until they are sent elsewhere.
    """
    rows = max(1, shard_tokens // plan.capacity)
    firsts = range(0, plan.num_rows, rows)
    return [
        _task(
            corpus,
            draw,
            plan,
            range(first, min(first + rows, plan.num_rows)),
            run=run,
            name=f"data-{number:05d}-of-{len(firsts):05d}.{file_format}",
            parts_folder=str(corpus.folder.resolve()),
            rows_folder=str(work.rows.resolve()),
            receipts_folder=str(work.shards.resolve()),
            with_roles=corpus.unit_edges is not None,
            file_format=file_format,
        )
        for number, first in enumerate(firsts)
    ]


def _task(corpus: Corpus, draw: Draw, plan: Plan, rows: range, **options: Any) -> ShardTask:
    numbers, starts, lengths, units_per_row = plan.pieces(rows.start, rows.stop)
    documents, counts = corpus.documents_of_units(draw.of(numbers))
    if corpus.unit_edges is None:
        documents_per_row = units_per_row
    else:  # no unit of two documents is ever cut, so each of its documents is whole
        edges = np.concatenate([[0], np.cumsum(units_per_row)])
        documents_per_row = np.add.reduceat(counts, edges[:-1])
        alone = np.repeat(counts == 1, counts)
        whole = corpus.offsets[documents + 1] - corpus.offsets[documents]
        lengths = np.where(alone, np.repeat(lengths, counts), whole)
        starts = np.repeat(starts, counts)
    parts, places = corpus.places_of(documents)
    used, local = np.unique(parts, return_inverse=True)
    part_starts = corpus.offsets[corpus.part_edges[parts]]
    return ShardTask(
        pieces=Pieces(
            part=local,
            place=places,
            start=corpus.offsets[documents] - part_starts + starts,
            length=lengths.astype(np.int64),
            document=documents.astype(np.int64),
        ),
        documents_per_row=documents_per_row,
        parts=tuple(dataclasses.replace(corpus.receipts[part], skipped=()) for part in used.tolist()),
        file_of_part=tuple(corpus.file_of_part[part] for part in used.tolist()),
        **options,
    )


def finished_shard(task: ShardTask) -> ShardReceipt | None:
    """The receipt of a file that an earlier attempt at the same run finished, if its bytes are still those."""
    values, path = read_receipt(_receipt_path(task)), Path(task.rows_folder) / task.name
    if values is None or values["run"] != task.run or not path.is_file():
        return None
    return ShardReceipt(**values) if sha256_of_file(path) == values["sha256"] else None


def shard_task(task: ShardTask) -> ShardReceipt:
    """Gather the rows of a shard and write them."""
    gathered, supervised = _gather(task)
    path = Path(task.rows_folder) / task.name
    write_table(path, gathered, task.documents_per_row, file_format=task.file_format)
    receipt = ShardReceipt(
        run=task.run,
        name=task.name,
        sha256=sha256_of_file(path),
        rows=len(task.documents_per_row),
        documents=len(task.pieces.length),
        tokens=len(gathered["input_ids"]),
        supervised_tokens=int(supervised.sum()),
        documents_without_supervision=int((supervised == 0).sum()),
    )
    write_receipt(_receipt_path(task), dataclasses.asdict(receipt))
    return receipt


def _receipt_path(task: ShardTask) -> Path:
    return Path(task.receipts_folder) / f"{task.name}.json"


def _edges(lengths: npt.NDArray[np.integer]) -> IndexArray:
    """Example: lengths ``[3, 5]`` have the edges ``[0, 3, 8]``."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _gather(task: ShardTask) -> tuple[dict[str, npt.NDArray[Any]], IndexArray]:
    """The columns of the shard, flat, and how many tokens of each piece are supervised."""
    pieces = task.pieces
    edges = _edges(pieces.length)
    columns: dict[str, npt.NDArray[Any]] = {
        "input_ids": np.empty(edges[-1], dtype=np.int32),
        "labels": np.empty(edges[-1], dtype=np.int32),
        "seq_lengths": pieces.length.astype(np.int32),
        "document_ids": pieces.document,
        "source_ids": np.array(task.file_of_part, dtype=np.int32)[pieces.part],
        "record_numbers": np.empty(len(pieces.part), dtype=np.int64),
    }
    if task.with_roles:
        columns["roles"] = np.empty(len(pieces.part), dtype=np.int8)
    supervised = np.zeros(len(pieces.part), dtype=np.int64)
    order = np.lexsort((pieces.start, pieces.part))
    borders = np.searchsorted(pieces.part[order], np.arange(len(task.parts) + 1))
    for number, receipt in enumerate(task.parts):
        chosen = order[borders[number] : borders[number + 1]]
        data = open_part(Path(task.parts_folder), receipt)
        columns["record_numbers"][chosen] = data.numbers[pieces.place[chosen]]
        if task.with_roles:
            columns["roles"][chosen] = data.roles[pieces.place[chosen]]
        where = (pieces.start[chosen], edges[chosen], pieces.length[chosen])
        supervised[chosen] = _copy(data.tokens, data.labels, *where, columns["input_ids"], columns["labels"])
        data.release()
    return columns, supervised


@njit(cache=True, nogil=True)  # several shards are gathered at a time
def _copy(  # noqa: PLR0917 - compiled code takes no keywords
    tokens: Int32Array,
    labels: Int32Array,
    starts: IndexArray,
    targets: IndexArray,
    lengths: IndexArray,
    out_tokens: Int32Array,
    out_labels: Int32Array,
) -> IndexArray:
    """Copy each piece to its target, its first token unsupervised; return how many tokens of each are supervised."""
    supervised = np.zeros(len(lengths), np.int64)
    for piece in range(len(lengths)):
        start, target = starts[piece], targets[piece]
        out_tokens[target] = tokens[start]
        out_labels[target] = IGNORE_INDEX
        count = 0
        for token in range(1, lengths[piece]):
            out_tokens[target + token] = tokens[start + token]
            out_labels[target + token] = labels[start + token]
            count += labels[start + token] != IGNORE_INDEX
        supervised[piece] = count
    return supervised

"""Document lengths out of whatever holds them: an array, a table, a list, a histogram, a packed folder.

Guarantee: one whole number of tokens for each document, in the order of the file, or an error that names the file and
what is wrong with it. A histogram has no order, so where one is needed it is drawn from a fixed seed: sorted lengths
would flatter some strategies and ruin others. Price: 8 bytes a document, or a length of a histogram; a packed folder is
verified first, which reads all of it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hermetic.constants import INT32_MAX
from hermetic.data.packed import open_packed
from hermetic.errors import PlanError, SourceError
from hermetic.plan.arguments import read_capacity, read_lengths

__all__ = ["DocumentLengths", "LengthCounts", "counts_or_lengths_from_path", "lengths_from_path"]

_LENGTH_COLUMNS: Final = ("length", "lengths", "input_ids")
"""Columns of a Parquet file that are taken without being named, the first one that it has."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DocumentLengths:
    """The tokens of each document of a file, and the capacity if the file states one."""

    path: str
    kind: str
    """What the file turned out to be, for people."""

    lengths: npt.NDArray[np.integer[Any]]
    """``[D]``, D of at least 1."""

    capacity: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthCounts:
    """How many documents of a file have each length, and the capacity if the file states one."""

    path: str
    counts: dict[int, int]
    """Documents of each length, at least one in all."""

    capacity: int | None = None

    def drawn(self) -> DocumentLengths:
        """Return as many lengths as are counted, in an order that is drawn, the same each time.

        Raises:
            SourceError: If there are more than a plan of single documents can hold.
        """
        total = sum(self.counts.values())
        if total > INT32_MAX:
            raise SourceError(f"{self.path} counts {total} documents; expected at most {INT32_MAX}")
        in_order = np.repeat(np.array(list(self.counts), np.int64), list(self.counts.values()))
        lengths = np.random.default_rng(0).permutation(in_order)
        return DocumentLengths(path=self.path, kind="histogram", lengths=read_lengths(lengths), capacity=self.capacity)


def lengths_from_path(path: str | os.PathLike[str], *, column: str | None = None) -> DocumentLengths:
    """Read document lengths.

    Args:
        path: ``.npy``, one-dimensional integers; ``.parquet``, a column of integers, or of lists whose lengths count;
            ``.json``, a list, ``{"lengths": [...]}`` or a histogram ``{"counts": [...]}`` with ``counts[i]`` documents
            of ``i + 1`` tokens, both with an optional ``"capacity"``; or a folder that ``hermetic pack`` made.
        column: of a Parquet file. By default ``length``, ``lengths`` or ``input_ids``, or its only column.

    Raises:
        SourceError: If the file is missing, of another kind, damaged, or holds no lengths.
        PackedDataError: If a folder is not one of packed rows, or is damaged.
    """
    found = counts_or_lengths_from_path(path, column=column)
    return found.drawn() if isinstance(found, LengthCounts) else found


def counts_or_lengths_from_path(
    path: str | os.PathLike[str], *, column: str | None = None
) -> DocumentLengths | LengthCounts:
    """Read what ``lengths_from_path`` reads, but a histogram as the counts that it holds.

    Raises:
        SourceError: As ``lengths_from_path``.
        PackedDataError: As ``lengths_from_path``.
    """
    source = Path(path)
    readers: dict[str, Callable[[Path], DocumentLengths | LengthCounts]] = {
        ".npy": _read_npy,
        ".json": _read_json,
        ".parquet": partial(_read_parquet, column=column),
    }
    if column is not None and source.suffix != ".parquet":
        raise SourceError(f"{source} has no columns, but column {column!r} was asked for; expected a .parquet file")
    if source.is_dir():
        return _read_packed(source)
    if source.suffix not in readers:
        raise SourceError(
            f"{source} ends in {source.suffix!r}; expected one of {', '.join(readers)}, or a folder of packed rows"
        )
    if not source.is_file():
        raise SourceError(f"{source} does not exist; check the path")
    return readers[source.suffix](source)


def _made(source: Path, kind: str, values: Any, capacity: Any = None) -> DocumentLengths:
    """Check what a reader found."""
    try:
        lengths = read_lengths(values)
    except PlanError as error:
        raise SourceError(f"{source}: {error}") from error
    _refuse_none(source, len(lengths))
    return DocumentLengths(
        path=os.fspath(source), kind=kind, lengths=lengths, capacity=_stated_capacity(source, capacity)
    )


def _refuse_none(source: Path, documents: int) -> None:
    if documents == 0:
        raise SourceError(f"{source} holds no lengths; expected at least one document")


def _stated_capacity(source: Path, capacity: Any) -> int | None:
    try:
        return None if capacity is None else read_capacity(capacity)
    except PlanError as error:
        raise SourceError(f"{source}: {error}") from error


def _read_npy(source: Path) -> DocumentLengths:
    try:
        array = np.load(source, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise SourceError(f"{source} cannot be read as a NumPy array: {error}; save it anew with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise SourceError(f"{source} is an archive of arrays; expected one array, as numpy.save writes it")
    return _made(source, "NumPy array", array)


def _read_json(source: Path) -> DocumentLengths | LengthCounts:
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise SourceError(f"{source} cannot be read as JSON: {error}; write the file anew") from error
    if isinstance(content, list):
        return _made(source, "list", content)
    if isinstance(content, dict) and isinstance(content.get("lengths"), list):
        return _made(source, "list", content["lengths"], content.get("capacity"))
    if isinstance(content, dict) and isinstance(content.get("counts"), list):
        return _read_counts(source, content["counts"], content.get("capacity"))
    found = f"an object with the keys {sorted(content)}" if isinstance(content, dict) else f"a {type(content).__name__}"
    raise SourceError(
        f'{source} holds {found}; expected a list of lengths, {{"lengths": [...]}}, or a histogram '
        '{"capacity": N, "counts": [...]} with counts[i] documents of i + 1 tokens'
    )


def _read_counts(source: Path, counts: list[Any], capacity: Any) -> LengthCounts:
    """Check a histogram."""
    for place, count in enumerate(counts):
        if type(count) is not int or count < 0:
            raise SourceError(
                f"{source}: counts[{place}] is {count!r}; expected the number of documents of {place + 1} tokens"
            )
    _refuse_none(source, sum(counts))
    found = {length: count for length, count in enumerate(counts, start=1) if count}
    return LengthCounts(path=os.fspath(source), counts=found, capacity=_stated_capacity(source, capacity))


def _read_parquet(source: Path, column: str | None) -> DocumentLengths:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as file:
            name = _chosen_column(source, file.schema_arrow.names, column)
            values = file.read(columns=[name]).column(name)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{source} cannot be read as Parquet: {error}; write the file anew") from error
    if values.null_count:
        raise SourceError(f"{source}: column {name!r} has {values.null_count} nulls; expected a length in each row")
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        import pyarrow.compute as pc

        values = pc.list_value_length(values)
    return _made(source, f"column {name!r} of a Parquet file", values.to_numpy())


def _chosen_column(source: Path, names: list[str], column: str | None) -> str:
    candidates = [name for name in _LENGTH_COLUMNS if name in names] or (names if len(names) == 1 else [])
    wanted = candidates[0] if column is None and candidates else column
    if wanted not in names:
        asked = "none of them is known to hold lengths" if wanted is None else f"not {wanted!r}"
        raise SourceError(
            f"{source} has the columns {', '.join(map(repr, names))}; {asked}. Name the column of lengths, or of "
            "lists of tokens"
        )
    return str(wanted)


def _read_packed(source: Path) -> DocumentLengths:
    packed = open_packed(source)
    return _made(source, "folder of packed rows", packed.document_lengths, packed.manifest.capacity)

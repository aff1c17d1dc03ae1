"""A packed folder as a map-style dataset.

**Guarantee.** ``dataset[i]`` is row ``i`` as it was packed, as read-only NumPy views of the file in memory: nothing is
copied until a collator does. A copy in another process opens the folder anew, and only if it is still the same.
**Price.** Opening reads the manifest and the last bytes of each shard; that each byte is right is for
:func:`hermetic.data.open_packed` to say. A folder of Parquet is decoded, see :mod:`hermetic.data.feed.shards`.
"""

import hashlib
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, SupportsIndex, overload

import numpy as np

from hermetic.data.feed.shards import Row, Shard, list_shards, open_shard
from hermetic.data.manifest import MANIFEST_NAME, PackManifest
from hermetic.errors import FeedError, PackedDataError, RowIndexError

_COLUMNS: Final = ("input_ids", "labels", "seq_lengths")


class PackedDataset:
    """The rows of a packed folder; ``len`` counts them.

    A row is a mapping of ``input_ids`` and ``labels`` (``[T]`` int32, unshifted, -100 on each document's first token)
    and ``seq_lengths`` (``[D]`` int32), as hermetic's collators and TRL's padding-free collator take it. An index may
    be negative; a slice or a list of indices gives a list of rows.

    Args:
        path: the folder.
        columns: what a row holds, such as ``"document_ids"`` besides.

    Raises:
        PackedDataError: It is not a packed folder, or a shard is missing or cut short. While reading: a shard holds
            another number of rows than the manifest says, or lacks a column.
        RowIndexError: There is no such row; it is an ``IndexError`` too.

    Example:
        ``PackedDataset("rows")[0]`` of documents ``[5, 6, 7]`` and ``[8, 9]``: input_ids ``[5, 6, 7, 8, 9]``, labels
        ``[-100, 6, 7, -100, 9]``, seq_lengths ``[3, 2]``.
    """

    def __init__(self, path: str | os.PathLike[str], *, columns: Sequence[str] = _COLUMNS) -> None:
        if isinstance(columns, str) or not columns:
            raise FeedError(f"columns is {columns!r}, expected a list of names such as {list(_COLUMNS)}")
        self.path = Path(path)
        self.columns = tuple(columns)
        self.manifest = PackManifest.load(self.path)
        self._fingerprint = _fingerprint(self.path)
        self._files = list_shards(self.path, self.manifest)
        self._edges = np.concatenate([[0], np.cumsum([file.rows for file in self._files], dtype=np.int64)])
        self._shards: dict[int, Shard] = {}

    def __len__(self) -> int:
        return int(self._edges[-1])

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, index: slice | Sequence[SupportsIndex]) -> list[Row]: ...

    def __getitem__(self, index: Any) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._row(number) for number in range(*index.indices(len(self)))]
        if isinstance(index, list | tuple | np.ndarray):
            return [self._row(self._number(one)) for one in index]
        return self._row(self._number(index))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Row]:
        """The rows of a batch, as torch's loaders ask for them."""
        return self[indices]

    def __iter__(self) -> Iterator[Row]:
        return (self._row(number) for number in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({os.fspath(self.path)!r}, rows={len(self)}, columns={list(self.columns)})"

    def _number(self, index: Any) -> int:
        try:
            number = operator.index(index)
        except TypeError as error:
            raise RowIndexError(
                f"the index {index!r} is a {type(index).__name__}, expected an int, a slice or a list of ints"
            ) from error
        if not -len(self) <= number < len(self):
            raise RowIndexError(f"row {number} does not exist in {self.path}, expected {-len(self)} to {len(self) - 1}")
        return number % len(self)

    def _row(self, number: int) -> Row:
        shard = int(np.searchsorted(self._edges, number, side="right")) - 1
        if shard not in self._shards:
            self._shards[shard] = open_shard(self._files[shard], self.columns)
        return self._shards[shard].row(number - int(self._edges[shard]))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "columns": self.columns, "fingerprint": self._fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        PackedDataset.__init__(self, state["path"], columns=state["columns"])
        if self._fingerprint != state["fingerprint"]:
            raise PackedDataError(
                f"{self.path} is not the folder that was open where this dataset comes from: its {MANIFEST_NAME} is "
                "another; open the folder anew"
            )


def _fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST_NAME).read_bytes()).hexdigest()

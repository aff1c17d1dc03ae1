"""Tokenized parts on disk.

Algorithm: a part is one file of flat arrays and, written after it, a receipt that says what is in the part and what its
bytes hash to. Both are named by a key, the hash of everything that decides what is in the part.
Guarantee: a receipt means that its part is whole; a part without one, or with a damaged one, is made again. The same
key always names the same bytes, so a part may be made twice, and by anyone. Price: 8 bytes a token and 13 a document,
on disk.

The file holds, one after the other: record numbers int64 [D], tokens int32 [T], labels int32 [T], lengths int32 [D],
roles int8 [D].
"""

import dataclasses
import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.encode import EncodedPart, Skipped
from hermetic.data.run.receipts import read_receipt, write_receipt
from hermetic.data.sources import sha256_of_file
from hermetic.files import replacing

__all__ = ["PartData", "PartReceipt", "finished_receipt", "open_part", "write_part"]

Int32Array: TypeAlias = npt.NDArray[np.int32]

_COLUMNS: Final = (
    ("numbers", np.int64, "documents"),
    ("tokens", np.int32, "tokens"),
    ("labels", np.int32, "tokens"),
    ("lengths", np.int32, "documents"),
    ("roles", np.int8, "documents"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartReceipt:
    """What is in a finished part."""

    key: str
    documents: int
    tokens: int
    pairs: int
    """Preference pairs: two documents each."""

    skipped: tuple[Skipped, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartData:
    """The arrays of a part, mapped from its file."""

    numbers: npt.NDArray[np.int64]
    tokens: Int32Array
    labels: Int32Array
    lengths: Int32Array
    roles: npt.NDArray[np.int8]
    mapped: mmap.mmap | None

    def release(self) -> None:
        """Give back the memory of what was read; the system keeps the file's pages as long as it has room."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def write_part(folder: Path, key: str, part: EncodedPart) -> PartReceipt:
    """Write a part and its receipt, each whole or not at all."""
    path = _part_path(folder, key)
    digest = hashlib.sha256()
    with replacing(path) as file:
        for name, dtype, _ in _COLUMNS:
            block = np.ascontiguousarray(getattr(part, name), dtype=dtype).data.cast("B")
            file.write(block)
            digest.update(block)
    receipt = PartReceipt(
        key=key,
        documents=len(part.lengths),
        tokens=len(part.tokens),
        pairs=int((part.roles == 1).sum()),
        skipped=part.skipped,
        sha256=digest.hexdigest(),
    )
    write_receipt(_receipt_path(folder, key), dataclasses.asdict(receipt))
    return receipt


def finished_receipt(folder: Path, key: str) -> PartReceipt | None:
    """The receipt of a part that an earlier run finished, if its bytes are still those it wrote."""
    values, part = read_receipt(_receipt_path(folder, key)), _part_path(folder, key)
    if values is None or not part.is_file() or sha256_of_file(part) != values["sha256"]:
        return None
    skipped = tuple(Skipped(**one) for one in values.pop("skipped"))
    return PartReceipt(skipped=skipped, **values)


def open_part(folder: Path, receipt: PartReceipt) -> PartData:
    """Map a part; nothing of it is read yet."""
    arrays: dict[str, Any] = {}
    mapped = None
    path = _part_path(folder, receipt.key)
    if path.stat().st_size:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 0
    for name, dtype, counted in _COLUMNS:
        count = getattr(receipt, counted)
        arrays[name] = np.frombuffer(mapped or b"", dtype=dtype, count=count, offset=start if mapped else 0)
        start += count * np.dtype(dtype).itemsize
    return PartData(**arrays, mapped=mapped)


def _part_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.part"


def _receipt_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"

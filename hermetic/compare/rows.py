"""The rows that a comparison trains on, and those that it holds out.

Algorithm: of one source, one row in ten is held out, spread evenly over the file, up to 64; of two, the second is held
out whole. Nothing that is held out is trained on.
Guarantee: every arm and seed gets the same rows. Near-duplicates of a held-out document may still be trained on where
the source has them in other rows; a second source is the way to rule that out.
Price: what packing costs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data import PackedData, PackManifest
from hermetic.errors import TrainError
from hermetic.train import packed_data

Documents = list[dict[str, Any]]
"""Those of one row, each with ``input_ids`` and ``labels``."""

_ONE_IN: Final = 10
MEASURED_ROWS: Final = 64
"""Rows that are held out of one source, and trained rows that the loss illusion is measured on, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRows:
    """Packed rows to train on, and others to measure on."""

    trained: PackedData
    """Its manifest is that of all rows of the source, its rows and lengths are those to train on."""
    heldout: tuple[Documents, ...]

    @property
    def capacity(self) -> int:
        """Tokens per row."""
        return self.trained.manifest.capacity

    @property
    def tokens(self) -> int:
        """Real tokens to train on."""
        return int(self.trained.document_lengths.sum())

    def batches(self, rows_per_batch: int) -> list[list[Documents]]:
        """The held-out rows in batches."""
        rows = list(self.heldout)
        return [rows[first : first + rows_per_batch] for first in range(0, len(rows), rows_per_batch)]


def rows_of(
    data: str | os.PathLike[str],
    heldout: str | os.PathLike[str] | None,
    tokenizer: Any,
    *,
    capacity: int | None,
    folder: Path,
    pack_options: dict[str, Any],
) -> ComparedRows:
    """Pack or open what is to be compared on.

    Args:
        data: a file that ``hermetic pack`` reads, or a folder that it made.
        heldout: another one to measure on; by default one row in ten of ``data``.
        tokenizer: that of the model, loaded.
        capacity: tokens per row; by default that of a packed folder.
        folder: where the rows of files go.
        pack_options: of ``pack_sources``, ``tokenizer`` among them.

    Raises:
        DataError: a source cannot be read or packed.
        TrainError: there is no capacity, too few rows, or a folder of another capacity or tokenizer.
    """
    capacity = _capacity(data, capacity)
    options: dict[str, Any] = {"capacity": capacity, "pack_options": pack_options}
    packed = packed_data(data, tokenizer, folder=folder, **options)
    if heldout is None:
        return held_out(packed)
    (folder / "heldout").mkdir()
    other = packed_data(heldout, tokenizer, folder=folder / "heldout", **options)
    return ComparedRows(trained=packed, heldout=tuple(map(list, other.rows())))


def check_heldout(network: Any, rows: ComparedRows, source: str | os.PathLike[str]) -> None:
    """Refuse, before anything is trained, rows on which nothing could be measured after it.

    Args:
        network: the model, for the tokens that it embeds.
        rows: its held-out ones are looked at.
        source: where they are from.

    Raises:
        TrainError: none of their tokens is supervised, or the model does not embed one.
    """
    size = network.get_input_embeddings().num_embeddings
    documents = [document for row in rows.heldout for document in row]
    largest = max((int(np.max(document["input_ids"])) for document in documents), default=0)
    if largest >= size:
        raise TrainError(
            f"{os.fspath(source)} holds out the token id {largest} and the model embeds {size} tokens; expected ids "
            "below that. Pack the source with this model's tokenizer"
        )
    if not any((np.asarray(document["labels"][1:]) != IGNORE_INDEX).any() for document in documents):
        raise TrainError(
            f"{os.fspath(source)} holds out {len(documents)} documents, and no token of them is supervised; expected "
            "some, for there is no loss to measure else. Hold out others"
        )


def held_out(packed: PackedData) -> ComparedRows:
    """One row in ten, spread evenly, at most ``MEASURED_ROWS``, is kept from training.

    Raises:
        TrainError: there is a single row.
    """
    count = len(packed)
    if count < 2:
        raise TrainError(
            f"{packed.path} has {count} row; expected at least 2, one to train on and one to hold out. Pass "
            "another source to hold out, more documents, or a smaller capacity"
        )
    kept = min(MEASURED_ROWS, max(1, count // _ONE_IN))
    chosen = np.linspace(0, count - 1, kept + 2, dtype=np.int64)[1:-1]
    rest = np.setdiff1d(np.arange(count), chosen)
    heldout = tuple(packed.documents_of_row(int(index)) for index in chosen)
    return ComparedRows(trained=only(packed, rest.tolist()), heldout=heldout)


def only(packed: PackedData, rows: Sequence[int]) -> PackedData:
    """Some rows of a packed folder; the manifest stays that of all."""
    ends = np.cumsum(packed.documents_per_row)
    lengths = np.split(packed.document_lengths, ends[:-1])
    return replace(
        packed,
        dataset=packed.dataset.select(rows),
        document_lengths=np.concatenate([lengths[row] for row in rows]),
        documents_per_row=packed.documents_per_row[list(rows)],
    )


def _capacity(data: str | os.PathLike[str], capacity: int | None) -> int:
    if capacity is not None:
        return capacity
    if not Path(data).is_dir():
        raise TrainError(f"{os.fspath(data)} has to be packed and no capacity was given; expected tokens per row")
    return PackManifest.load(Path(data)).capacity

"""Rows for TRL's ``SFTTrainer``: a data set that ``datasets.load_from_disk`` opens, packed already.

Columns: ``input_ids`` and ``labels``, list<int32>, and ``seq_lengths``, list<int32>, from which TRL's collator makes
positions that restart. Labels are unshifted (the model shifts), -100 on each document's first token and on unsupervised
tokens. Rows have no padding and no tail: TRL's padding-free collator joins them end to end.

    documents [5, 6, 7] and [8, 9], 6, 7 and 9 supervised:
    input_ids [5, 6, 7, 8, 9], labels [-100, 6, 7, -100, 9], seq_lengths [3, 2]

TRL must not pack or cut these rows again; both would part tokens from their ``seq_lengths``::

    SFTConfig(packing=False, padding_free=True, max_length=None, dataset_kwargs={"skip_prepare_dataset": True})

That keeps positions and targets apart. Whether attention and the other token mixers of the model are kept apart, too,
is up to the model: ``hermetic.seal`` makes it so, ``hermetic probe`` says whether it is.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermetic.data.dependencies import import_optional
from hermetic.data.packed import PackedData

__all__ = ["write"]


def write(packed: PackedData, folder: Path, on_rows: Callable[[int], None]) -> None:
    """Write the rows in this form."""
    columns = packed.dataset.select_columns(["input_ids", "labels", "seq_lengths"])
    with _without_progress_bars(import_optional("datasets")):
        columns.save_to_disk(os.fspath(folder))
    on_rows(len(packed))


@contextmanager
def _without_progress_bars(datasets: Any) -> Iterator[None]:
    """Whoever exports shows progress in its own way."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()

"""A DataLoader over packed rows for one of several ranks, for any training loop.

Guarantee: that of ``BalancedRowSampler``: no row of an epoch is left out or read twice, and all ranks have as many
batches, so that none waits for another at the end. Price: with several ranks the lengths of all rows are read once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from hermetic.constants import IGNORE_INDEX
from hermetic.integrations.balanced import BalancedRowSampler, work_of_lengths
from hermetic.integrations.rows import PackedCollator, Row, lengths_of_rows
from hermetic.loss.pairs import NEITHER

_BLANK_IDS = [0, 0]
_BLANK_LABELS = [IGNORE_INDEX, IGNORE_INDEX]


class RowsOrBlanks(Dataset[Row]):
    """A data set whose item ``None`` is a row of one document of two tokens, neither of which is supervised.

    A rank that has no row where the others still have one runs it, and adds nothing to the loss.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int | None) -> Row:
        row: Row = self._blank() if index is None else self.dataset[index]
        return row

    def __getitems__(self, indices: Sequence[int | None]) -> list[Row]:
        """The rows of a batch, at once where the data set can."""
        if None in indices or not hasattr(self.dataset, "__getitems__"):
            return [self[index] for index in indices]
        rows: list[Row] = self.dataset.__getitems__(indices)
        return rows

    def _blank(self) -> Row:
        """In the form that the collator knows."""
        document = {"input_ids": _BLANK_IDS, "labels": _BLANK_LABELS}
        known = self.dataset[0]
        if not isinstance(known, Mapping):
            return [document]
        of_a_row = {"seq_lengths": [len(_BLANK_IDS)], "roles": [NEITHER]}
        return {**document, **{name: value for name, value in of_a_row.items() if name in known}}


class RowLoader(DataLoader[Row]):
    """A DataLoader over a ``BalancedRowSampler``; ``set_epoch`` chooses the order of the next pass."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of ``epoch``."""
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)


def row_loader(
    dataset: Any,
    *,
    rows_per_batch: int,
    rank: int = 0,
    num_ranks: int = 1,
    accumulation_steps: int = 1,
    seed: int | None = 0,
    window: int = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    **options: Any,
) -> RowLoader:
    """A loader over the rows of a data set, for one rank.

    Args:
        dataset: rows, such as a ``hermetic.data.PackedDataset``.
        rows_per_batch: rows of one micro-batch.
        rank: whose batches.
        num_ranks: data-parallel ranks.
        accumulation_steps: micro-batches of one optimizer step, over which work is evened.
        seed: of the order of rows; None for their natural order.
        window: steps among which work is evened; 1 leaves the rows of each step the same for any number of ranks.
        collate_fn: ``PackedCollator()`` by default; ``collate_rows`` gives ``PackedBatch``.
        **options: as ``torch.utils.data.DataLoader`` takes them, such as ``num_workers``.

    Returns:
        A loader whose length is the micro-batches of an epoch, the same on all ranks.

    Raises:
        FeedError: An argument is not as described.

    Example:
        >>> rows = [[{"input_ids": [5, 6, 7]}], [{"input_ids": [8, 9]}, {"input_ids": [4]}]]
        >>> [inputs["cu_seq_lens_q"].tolist() for inputs in row_loader(rows, rows_per_batch=1, seed=None)]
        [[0, 3], [0, 2, 3]]
    """
    evens = num_ranks != 1 and (rows_per_batch != 1 or accumulation_steps != 1 or window != 1)
    sampler = BalancedRowSampler(
        work_of_lengths(lengths_of_rows(dataset)) if evens else len(dataset),
        rows_per_batch=rows_per_batch,
        rank=rank,
        num_ranks=num_ranks,
        accumulation_steps=accumulation_steps,
        seed=seed,
        window=window,
    )
    return RowLoader(RowsOrBlanks(dataset), batch_sampler=sampler, collate_fn=collate_fn or PackedCollator(), **options)

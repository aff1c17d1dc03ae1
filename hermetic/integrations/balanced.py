"""Rows in steps of even work: a batch sampler for data-parallel ranks that leaves out no row and repeats none.

**Algorithm.** An epoch's rows are taken in the one order of seed and epoch (``hermetic.data.feed.RowOrder``), step
after step: W ranks with A micro-batches of B rows each take the next W x A x B. Inside a step, or a window of several,
rows are given to ranks by ``hermetic.plan.assign_rows``, as many to each and with nearly the same work.
**Guarantee.** Every row of an epoch is in exactly one batch of one rank. All ranks have the same number of batches:
where the last step has too few rows, a batch is ``[None]``, which a loader makes into a row that trains nothing. With a
window of one step the rows of a step are the same whatever W is.
**Price.** O(rows log rows) once an epoch. A window of several steps evens work more and makes steps of rows alike.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hermetic.data.feed import RowOrder
from hermetic.data.feed.arguments import read_rank, read_seed, whole_number
from hermetic.errors import FeedError
from hermetic.plan.arrays import IntArray
from hermetic.plan.balance import DEFAULT_COST, assign_rows

Batch = list[int] | list[None]


class BalancedRowSampler:
    """The batches of one epoch for one rank: the ``batch_sampler`` of a loader.

    Args:
        row_work: ``[num_rows]``, the work of each row, as ``work_of_lengths`` gives it; or the number of rows, all
            alike.
        rows_per_batch: B, rows of one micro-batch.
        rank: whose batches.
        num_ranks: W.
        accumulation_steps: A, micro-batches of one optimizer step.
        seed: of the order; None for the natural order in every epoch.
        window: steps among which work is evened.

    Raises:
        FeedError: An argument is not as described.

    Example:
        >>> options = {"rows_per_batch": 2, "num_ranks": 2, "seed": None}
        >>> [list(BalancedRowSampler([5, 1, 4, 2, 3], rank=rank, **options)) for rank in (0, 1)]
        [[[0, 1], [4]], [[2, 3], [None]]]
    """

    def __init__(
        self,
        row_work: npt.ArrayLike,
        *,
        rows_per_batch: int,
        rank: int = 0,
        num_ranks: int = 1,
        accumulation_steps: int = 1,
        seed: int | None = 0,
        window: int = 1,
    ) -> None:
        self.row_work = _read_work(row_work)
        self.order = RowOrder(len(self.row_work), read_seed(seed))
        self.rows_per_batch = whole_number(rows_per_batch, "rows_per_batch", minimum=1)
        self.num_ranks = whole_number(num_ranks, "num_ranks", minimum=1)
        self.rank = read_rank(rank, self.num_ranks)
        self.accumulation_steps = whole_number(accumulation_steps, "accumulation_steps", minimum=1)
        self.window = whole_number(window, "window", minimum=1)
        self.epoch = 0

    @property
    def rows_per_step(self) -> int:
        """Rows of one optimizer step of all ranks."""
        return self.num_ranks * self.rows_per_batch * self.accumulation_steps

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.order.num_rows // self.rows_per_step)

    @property
    def sampler(self) -> "BalancedRowSampler":
        """Itself: loaders of other libraries look for ``set_epoch`` here."""
        return self

    def __len__(self) -> int:
        """Micro-batches of an epoch, the same for all ranks."""
        full, rest = divmod(self.order.num_rows, self.rows_per_step)
        return full * self.accumulation_steps - (-rest // (self.num_ranks * self.rows_per_batch))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of ``epoch``."""
        self.epoch = whole_number(epoch, "epoch", minimum=0)

    def __iter__(self) -> Iterator[Batch]:
        order = self.order.epoch(self.epoch)
        full = len(order) // self.rows_per_step * self.rows_per_step
        per_window = self.rows_per_step * self.window
        for start in range(0, full, per_window):
            yield from self._window(order[start : min(start + per_window, full)])
        if full < len(order):
            yield from self._last_step(order[full:])

    def _window(self, rows: IntArray) -> Iterator[Batch]:
        """The batches of whole steps."""
        per_rank = self.rows_per_batch * self.accumulation_steps
        steps = rows.reshape(-1, self.num_ranks, per_rank)
        if self.num_ranks > 1 and (per_rank > 1 or self.window > 1):
            seed = 0 if self.order.seed is None else self.order.seed
            steps = rows[assign_rows(self.row_work[rows], self.num_ranks, rows_per_rank=per_rank, seed=seed).rows]
        for step in steps[:, self.rank]:
            yield from step.reshape(self.accumulation_steps, self.rows_per_batch).tolist()

    def _last_step(self, rows: IntArray) -> Iterator[Batch]:
        """The batches of a step with fewer rows, as even over ranks and micro-batches as they can be."""
        batches = -(-len(rows) // (self.num_ranks * self.rows_per_batch))
        heaviest_first = rows[np.argsort(-self.row_work[rows], kind="stable")]
        mine = np.sort(heaviest_first[self.rank :: self.num_ranks])
        for batch in np.array_split(mine, batches):
            yield batch.tolist() or [None]


def _read_work(row_work: Any) -> npt.NDArray[np.float64]:
    try:
        work = np.asarray(row_work, np.float64)
    except (TypeError, ValueError) as error:
        raise FeedError(f"row_work is {row_work!r}, expected the work of each row, or the number of rows") from error
    if work.ndim == 0:
        return np.ones(whole_number(row_work, "the number of rows", minimum=1))
    if work.ndim > 1:
        raise FeedError(f"row_work has shape {list(work.shape)}, expected one number for each row")
    return work


def work_of_lengths(
    lengths: list[npt.NDArray[np.int64]], cost: tuple[float, float] = DEFAULT_COST
) -> npt.NDArray[np.float64]:
    """The work of rows from the lengths of their documents.

    Args:
        lengths: one array for each row, as ``lengths_of_rows`` gives them.
        cost: ``(a, b)``, as in ``Plan.assign``.

    Returns:
        ``[num_rows]``: ``a * tokens + b * sum(length²)``.

    Example:
        >>> work_of_lengths([np.array([3, 1]), np.array([4])], (1, 2))
        array([24., 36.])
    """
    per_token, per_square = cost
    return np.array([per_token * row.sum() + per_square * np.square(row, dtype=np.float64).sum() for row in lengths])

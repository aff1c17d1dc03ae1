"""Pass after pass over a data set without a length, as transformers' Trainer reads it.

**Algorithm.** Where a loader has no length, the Trainer takes the whole run for one epoch: it reads the loader again
for each pass, tells it no epoch that a resume would know of, and on a resume skips the micro-batches of all steps so
far in the first reading. So each reading here is the next pass, and the first goes on into as many as it takes to get
past what will be skipped. A pass is filled up to whole steps with micro-batches that weigh nothing.
**Guarantee.** Pass ``n`` is the same whether the run was stopped before it or not. The global random state is left
alone, so that dropout after a resume is that of a run that did not stop. **Price.** A resume reads again all that was
read before it; the workers of each pass are new.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hermetic.data import PackedStream
from hermetic.errors import TrainError
from hermetic.integrations.batches import without_targets

Inputs = dict[str, Any]


class Passes(IterableDataset[Inputs]):
    """The micro-batches of one pass for each time that it is iterated over.

    Args:
        batches_of: from the number of a pass, 0-based, to its micro-batches.
        per_step: micro-batches of an optimizer step.
        behind: how many micro-batches the caller will skip, asked when the first pass begins.

    Raises:
        TrainError: while iterating: a pass has no micro-batch.

    Example:
        >>> batches = [{"input_ids": torch.tensor([[5, 6]]), "labels": torch.tensor([[-100, 6]])}] * 3
        >>> passes = Passes(lambda number: batches, per_step=2, behind=lambda: 0)
        >>> [inputs["labels"].tolist() for inputs in passes]
        [[[-100, 6]], [[-100, 6]], [[-100, 6]], [[-100, -100]]]
    """

    def __init__(
        self, batches_of: Callable[[int], Iterable[Inputs]], *, per_step: int, behind: Callable[[], int]
    ) -> None:
        super().__init__()
        self._batches_of = batches_of
        self._per_step = per_step
        self._behind = behind
        self._number = 0

    def __iter__(self) -> Iterator[Inputs]:
        behind = self._behind() if self._number == 0 else 0
        given = 0
        while given <= behind:
            number, self._number = self._number, self._number + 1
            for inputs in self._whole_steps(number):
                given += 1
                yield inputs

    def _whole_steps(self, number: int) -> Iterator[Inputs]:
        count, inputs = 0, None
        for inputs in self._batches_of(number):
            count += 1
            yield inputs
        if inputs is None:
            raise TrainError(
                f"pass {number} of the data set holds no batch, so that training would not end; expected at least one "
                "step of rows. A stream with ragged_end='drop' leaves out the rows that do not fill a step of all ranks"
            )
        for _ in range(-count % self._per_step):
            yield without_targets(inputs)


def pass_of(dataset: Any, number: int) -> Any:
    """A data set as it is to be read in a pass.

    Args:
        dataset: a ``PackedStream``, whose passes follow the one at which it stands; or another, which is told the
            number of the pass if it has ``set_epoch``.
        number: of the pass, 0-based.
    """
    if isinstance(dataset, PackedStream):
        return dataset.pass_after(number)
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(number)
    return dataset


def loader_of(dataset: Any, *, seed: int = 0, **options: Any) -> DataLoader[Any]:
    """A DataLoader that draws the seed of its workers from a generator of its own.

    Args:
        dataset: what it reads.
        seed: of the generator.
        **options: as ``torch.utils.data.DataLoader`` takes them.
    """
    return DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def loader_of_passes(passes: Passes) -> DataLoader[Any]:
    """What the Trainer takes: ``accelerate.skip_first_batches`` makes another of its ``dataset``."""
    return loader_of(passes, batch_size=None, collate_fn=_as_they_are)


def _as_they_are(inputs: Inputs) -> Inputs:
    return inputs

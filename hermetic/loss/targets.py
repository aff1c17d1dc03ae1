"""Which rows of a stream predict a supervised token, and what to say when one of them is broken.

Algorithm: row ``t - 1`` predicts ``labels[t]``; the rows with such a label are listed once. Guarantee: no other
row is ever read. Price: one pass over the labels, and waits for the device to list and to check.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import LossError, NonFiniteError

Place = Callable[[int], str]
"""What an error calls a slot of the stream."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Targets:
    """The S supervised tokens of a stream of T slots, in order.

    Attributes:
        positions: [S] their slots; the slot before each is the row that predicts it.
        values: [S] their labels.
        place: What an error calls a slot.
    """

    positions: torch.Tensor
    values: torch.Tensor
    place: Place

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, stream: torch.Tensor) -> torch.Tensor:
        """[S, ...] rows of ``stream`` [T, ...] that predict a supervised token, copied."""
        return stream.index_select(0, self.positions - 1)

    def refuse_non_finite(self, losses: torch.Tensor, dtype: torch.dtype) -> None:
        """Raise ``NonFiniteError`` with the place of the first loss [S] that is no number."""
        broken = (~losses.detach().isfinite()).nonzero()
        if len(broken):
            slot = int(self.positions[broken[0]])
            raise NonFiniteError(
                f"{self.place(slot)} has the loss {float(losses[broken[0]])}, expected finite logits where they "
                f"predict a supervised token; look for an overflow in {dtype} or a diverged model, or "
                f"mask the token"
            )


def targets_from_labels(labels: torch.Tensor, vocabulary: int, place: Place) -> Targets:
    """List the supervised tokens of a stream of unshifted labels.

    Args:
        labels: [T] int64; ``labels[0]`` is never supervised.
        vocabulary: Labels are below this.
        place: What an error calls a slot.

    Returns:
        The S tokens with a label.

    Raises:
        LossError: If a label is beyond the vocabulary: on an accelerator it would be an assertion without a place.

    Example:
        >>> targets_from_labels(torch.tensor([-100, 6, -100, 9]), 10, str).positions
        tensor([1, 3])
    """
    positions = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    values = labels.index_select(0, positions)
    wrong = ((values < 0) | (values >= vocabulary)).nonzero()
    if len(wrong):
        raise LossError(
            f"{place(int(positions[wrong[0]]))} has the label {int(values[wrong[0]])}, expected 0 to "
            f"{vocabulary - 1} or {IGNORE_INDEX}; the logits have {vocabulary} entries, so check that "
            f"tokenizer and model belong together"
        )
    return Targets(positions=positions, values=values, place=place)


def place_in_batch(batch: PackedBatch) -> Place:
    """What errors call a slot of this batch.

    Args:
        batch: The batch.

    Returns:
        A function of the slot.

    Example:
        >>> from hermetic.batch import collate
        >>> place_in_batch(collate([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]))(4)
        'document 1, token 1 (slot 4)'
    """

    def place(slot: int) -> str:
        document = int(batch.boundaries.document_ids[slot])
        token = int(batch.boundaries.position_ids[slot])
        return f"document {document}, token {token} (slot {slot})"

    return place


def stream_of(values: torch.Tensor, batch: PackedBatch, *, name: str, letter: str) -> torch.Tensor:
    """One row of features for each slot of the batch.

    Args:
        values: [T, V] or [1, T, V].
        batch: The batch of T slots.
        name: What an error calls the values.
        letter: What an error calls the features.

    Returns:
        [T, V].

    Raises:
        LossError: If it is no tensor, or the shape is another one.

    Example:
        >>> from hermetic.batch import collate
        >>> stream_of(torch.zeros(1, 3, 8), collate([{"input_ids": [1, 2, 3]}]), name="logits", letter="V").shape
        torch.Size([3, 8])
    """
    slots = batch.num_slots
    if not isinstance(values, torch.Tensor):
        raise LossError(f"{name} are of type {type(values).__name__}, expected a tensor [{slots}, {letter}]")
    flat = values[0] if values.ndim == 3 and values.shape[0] == 1 else values
    if flat.ndim != 2 or flat.shape[0] != slots:
        raise LossError(
            f"{name} have shape {list(values.shape)}, expected [{slots}, {letter}] or [1, {slots}, {letter}]; pass the "
            f"{name} of all {slots} slots of this batch, the padded tail included"
        )
    return flat


def check_stream(values: torch.Tensor, labels: torch.Tensor, *, name: str) -> None:
    """Refuse rows that cannot go with these labels.

    Args:
        values: [T, ...].
        labels: [T].
        name: What an error calls the values.

    Raises:
        LossError: If dtypes or devices do not fit.

    Example:
        >>> check_stream(torch.zeros(1, 8), torch.tensor([-100]), name="logits")
    """
    if not values.dtype.is_floating_point:
        raise LossError(f"{name} have dtype {values.dtype}, expected a floating one; pass the model's raw scores")
    if labels.dtype != torch.int64:
        raise LossError(f"labels have dtype {labels.dtype}, expected torch.int64; convert them")
    if values.device != labels.device:
        raise LossError(
            f"{name} are on {values.device} and labels on {labels.device}, expected one device; move the "
            f"batch with batch.to({name.split(maxsplit=1)[0]}.device)"
        )

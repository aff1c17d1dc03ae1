"""PackedBatch: the tokens of many documents in one flat stream, with their labels and their boundaries.

Algorithm: three parallel facts, checked once when the object is made. Guarantee: no label sits on the first
token of a document or on the padded tail, so no token can be trained to predict another document's token;
the boundaries travel with the tokens and are never guessed again. Price: one pass over the labels at
construction (on an accelerator this waits for the device), O(tokens) for ``model_inputs``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects import flash_kwargs
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import BatchError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedBatch:
    """One flat batch: T slots, the first ``boundaries.num_tokens`` of them real and the rest the tail.

    Attributes:
        input_ids: [T] int64.
        labels: [T] int64, unshifted; -100 on the first token of every document, on unsupervised tokens and
            the tail.
        boundaries: The documents; the tail does not exist in them.

    Raises:
        BatchError: If shapes, dtypes or devices differ from this, or a label sits where none can.

    Example:
        >>> batch = PackedBatch(
        ...     input_ids=torch.tensor([5, 6, 7, 8, 9]),
        ...     labels=torch.tensor([-100, 6, 7, -100, 9]),
        ...     boundaries=Boundaries.from_lengths([3, 2]),
        ... )
        >>> batch.num_supervised_tokens
        3
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    boundaries: Boundaries

    def __post_init__(self) -> None:
        for name in ("input_ids", "labels"):
            _check_column(name, getattr(self, name))
        if self.labels.shape != self.input_ids.shape or self.labels.device != self.input_ids.device:
            raise BatchError(
                f"labels have shape {list(self.labels.shape)} on {self.labels.device}, expected the shape "
                f"{list(self.input_ids.shape)} and device {self.input_ids.device} of input_ids"
            )
        if self.boundaries.num_tokens > self.num_slots:
            raise BatchError(
                f"boundaries describe {self.boundaries.num_tokens} tokens, but input_ids has "
                f"{self.num_slots}; expected the boundaries of this very stream"
            )
        _check_values(self.input_ids, self.labels)
        _check_unpredictable(self.labels, self.boundaries)

    @property
    def num_slots(self) -> int:
        """T, the padded tail included; ``boundaries.num_tokens`` counts the real tokens."""
        return self.input_ids.shape[0]

    @property
    def num_supervised_tokens(self) -> int:
        """Tokens that carry a label. Waits for the device."""
        return int((self.labels != IGNORE_INDEX).sum())

    def unpack(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Cut a per-token tensor into one tensor for each document.

        Args:
            x: [T, ...] or [1, T, ...], such as the logits of this batch. In a batch of one slot, [1, 1, ...]
                is read as [1, T, ...].

        Returns:
            D views of shape [length, ...]; an empty document gives an empty tensor, the tail is left out.

        Raises:
            BatchError: If ``x`` does not have T tokens.

        Example:
            >>> batch = PackedBatch(
            ...     input_ids=torch.tensor([5, 6, 7]),
            ...     labels=torch.tensor([-100, 6, -100]),
            ...     boundaries=Boundaries.from_lengths([2, 0, 1]),
            ... )
            >>> batch.unpack(batch.input_ids)
            [tensor([5, 6]), tensor([], dtype=torch.int64), tensor([7])]
        """
        if x.shape[:2] == (1, self.num_slots):
            flat = x[0]
        elif x.shape[:1] == (self.num_slots,):
            flat = x
        else:
            raise BatchError(
                f"x has shape {list(x.shape)}, expected [{self.num_slots}, ...] or [1, {self.num_slots}, "
                f"...]; unpack takes one value for each of the batch's {self.num_slots} slots, the tail "
                f"included"
            )
        real = flat[: self.boundaries.num_tokens]
        return list(real.split_with_sizes(self.boundaries.document_lengths))

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of a Hugging Face model.

        Returns:
            ``input_ids``, ``labels`` and ``position_ids`` [1, T] (positions restart at 0 for each document
            and for the tail), ``cu_seq_lens_q`` and ``cu_seq_lens_k`` [E] int32 (the tail is one more edge),
            ``max_length_q`` and ``max_length_k`` as Python ints, and ``use_cache=False``, since with a cache
            transformers does not look for documents. There is no ``attention_mask``: an all-ones mask would
            tell the model that the row is one document.

        Example:
            >>> batch = PackedBatch(
            ...     input_ids=torch.tensor([5, 6, 7, 0]),
            ...     labels=torch.tensor([-100, 6, -100, -100]),
            ...     boundaries=Boundaries.from_lengths([2, 1]),
            ... )
            >>> inputs = batch.model_inputs()
            >>> inputs["position_ids"], inputs["cu_seq_lens_q"]
            (tensor([[0, 1, 0, 0]]), tensor([0, 2, 3, 4], dtype=torch.int32))
        """
        device = self.input_ids.device
        flash = flash_kwargs(self.boundaries, num_slots=self.num_slots)
        positions = views.position_ids_from_edges(flash["cu_seq_lens_q"].numpy())
        edges = flash["cu_seq_lens_q"].to(device)
        return {
            "input_ids": self.input_ids[None],
            "labels": self.labels[None],
            "position_ids": positions.to(device)[None],
            **flash,
            "cu_seq_lens_q": edges,
            "cu_seq_lens_k": edges,
            "use_cache": False,
        }

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The same batch with its tensors on another device; the boundaries stay plain numbers.

        Args:
            device: Where the tensors go.

        Returns:
            A new batch; its tensors are this one's where they were already there.
        """
        return replace(self, input_ids=self.input_ids.to(device), labels=self.labels.to(device))


def batch_of_checked(*, input_ids: torch.Tensor, labels: torch.Tensor, boundaries: Boundaries) -> PackedBatch:
    """A batch whose maker has looked at every value itself, as ``collate`` does; nothing is looked at again.

    Args:
        input_ids: As in ``PackedBatch``.
        labels: As in ``PackedBatch``.
        boundaries: As in ``PackedBatch``.

    Returns:
        A batch that ``PackedBatch(...)`` of the same arguments would equal.

    Example:
        >>> ids, labels = torch.tensor([5, 6]), torch.tensor([-100, 6])
        >>> batch = batch_of_checked(input_ids=ids, labels=labels, boundaries=Boundaries.from_lengths([2]))
        >>> batch.num_slots
        2
    """
    batch = object.__new__(PackedBatch)
    for name, value in (("input_ids", input_ids), ("labels", labels), ("boundaries", boundaries)):
        object.__setattr__(batch, name, value)
    return batch


def _check_column(name: str, column: torch.Tensor) -> None:
    if column.ndim != 1 or column.dtype != torch.int64:
        raise BatchError(
            f"{name} has shape {list(column.shape)} and dtype {column.dtype}, expected [T] of torch.int64; "
            f"flatten the rows to one stream"
        )


def _at_hand(column: torch.Tensor) -> Any:
    """The column, on the CPU as an array: NumPy is done with a short one before torch has begun."""
    return column.numpy() if column.is_cpu else column


def _check_values(input_ids: torch.Tensor, labels: torch.Tensor) -> None:
    ids, targets = _at_hand(input_ids), _at_hand(labels)
    columns = (("input_ids", ids, ids < 0), ("labels", targets, (targets < 0) & (targets != IGNORE_INDEX)))
    for name, column, wrong in columns:
        if bool(wrong.any()):
            index = int(torch.as_tensor(wrong).nonzero()[0])
            raise BatchError(
                f"{name}[{index}] is {int(column[index])}, expected a token id of 0 or more"
                f"{f' or {IGNORE_INDEX}' if name == 'labels' else ''}; replace it before packing"
            )


def _check_unpredictable(labels: torch.Tensor, boundaries: Boundaries) -> None:
    """Nothing of its own document comes before a first token, and nothing real is in the tail."""
    targets, starts = _at_hand(labels), views.edges_from_lengths(boundaries.document_lengths)
    first, tail = targets[starts[:-1]] != IGNORE_INDEX, targets[starts[-1] :] != IGNORE_INDEX
    if bool(first.any()) or bool(tail.any()):
        places = [*starts[:-1].tolist(), *range(int(starts[-1]), len(labels))]
        index = next(place for place in places if int(labels[place]) != IGNORE_INDEX)
        raise BatchError(
            f"labels[{index}] is {int(labels[index])} on {_place(boundaries.document_lengths, index)}, expected "
            f"{IGNORE_INDEX}: no earlier token of its own document predicts it; unshifted labels never sit there"
        )


def _place(lengths: Sequence[int], index: int) -> str:
    end = 0
    for document, length in enumerate(lengths):
        end += length
        if index < end:
            return f"the first token of document {document}"
    return "the padded tail"

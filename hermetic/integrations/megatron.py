"""Packed folders as the batches of Megatron-core's ``thd`` format, and the loss that weighs them rightly.

Algorithm: each row is one micro-batch, a stream in which Megatron finds documents by ``PackedSeqParams``. Labels are
moved to the token that predicts them before anything is padded, and what is not supervised is masked, not marked.
With context parallelism each document is padded to its multiple, and the tail that rows of one shape end with is a
document of its own. Guarantee: no label is another document's; a masked slot has the label 0, which any kernel can
look up; every row's slots are a multiple of what its ranks need. Megatron is not imported: its class is an argument.
Price: O(tokens) for each row, one copy of each column.

``MegatronBatch.kwargs`` are the arguments of ``GPTModel.forward``. Its loss per token is for ``token_loss``, with
``calculate_per_token_loss=True`` in the model's configuration: without it Megatron divides each micro-batch by its own
tokens and averages those means, which is another loss whenever micro-batches or ranks differ.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hermetic.batch import PackedBatch, views
from hermetic.batch.dialects import packed_seq_kwargs, padded_index, shift_labels
from hermetic.constants import IGNORE_INDEX
from hermetic.data.feed import collate_packed_rows
from hermetic.errors import BatchError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MegatronBatch:
    """One micro-batch of Megatron-core: S slots, documents padded for context parallelism and a tail included.

    Attributes:
        tokens: [1, S] int64.
        labels: [1, S] int64: at each token the next one of its document; 0 where ``loss_mask`` is 0.
        loss_mask: [1, S] float32: 1 where the label is to be predicted.
        position_ids: [1, S] int64, from 0 in each document and in the tail.
        packed_seq_params: Megatron-core's ``PackedSeqParams`` of these documents, edges on the device of the tokens.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    packed_seq_params: Any

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of ``GPTModel.forward``, which then returns a loss for each slot, [1, S].

        The attention mask is ``None``: documents are in ``packed_seq_params``.
        """
        return {
            "input_ids": self.tokens,
            "position_ids": self.position_ids,
            "attention_mask": None,
            "labels": self.labels,
            "packed_seq_params": self.packed_seq_params,
        }


def megatron_batch(
    batch: PackedBatch,
    params_class: type,
    *,
    context_parallel: int = 1,
    pad_each_to: int = 1,
    num_slots: int | None = None,
    pad_token_id: int = 0,
) -> MegatronBatch:
    """A packed batch as Megatron-core takes it, whole; ranks of context parallelism cut it by its padded edges.

    Args:
        batch: The documents; its own tail is left out.
        params_class: ``megatron.core.packed_seq_params.PackedSeqParams``.
        context_parallel: Ranks that share each document, as in ``packed_seq_kwargs``.
        pad_each_to: As in ``packed_seq_kwargs``; with sequence parallelism over S ranks give 2 * C * S.
        num_slots: Slots of the stream, for batches of one shape. Default: those of the padded documents.
        pad_token_id: What fills slots without a token.

    Returns:
        The micro-batch, on the device of the batch.

    Raises:
        BatchError: As ``packed_seq_kwargs``, and if there is no token.

    Example:
        >>> from dataclasses import make_dataclass
        >>> from hermetic.batch import collate
        >>> edges = [f"cu_seqlens_{what}" for what in ("q", "kv", "q_padded", "kv_padded")]
        >>> stand_in = make_dataclass("Params", ["qkv_format", "max_seqlen_q", "max_seqlen_kv", *edges])
        >>> packed = megatron_batch(collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]), stand_in)
        >>> packed.labels, packed.loss_mask
        (tensor([[6, 7, 0, 9, 0]]), tensor([[1., 1., 0., 1., 0.]]))
    """
    boundaries = batch.boundaries
    if boundaries.num_tokens == 0:
        raise BatchError("the batch has no tokens, expected at least one; leave out rows without documents")
    layout = {"context_parallel": context_parallel, "pad_each_to": pad_each_to}
    described = packed_seq_kwargs(boundaries, params_class, num_slots=num_slots, **layout)
    edges = described["cu_seqlens_q_padded"]
    index = padded_index(boundaries, **layout)
    device = batch.input_ids.device
    params = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in described.items()}

    def laid_out(values: torch.Tensor, fill: int) -> torch.Tensor:
        slots = values.new_full((int(edges[-1]),), fill)
        return slots.index_copy_(0, index.to(device), values[: boundaries.num_tokens])

    targets = laid_out(shift_labels(batch.labels, boundaries), IGNORE_INDEX)
    supervised = targets != IGNORE_INDEX
    return MegatronBatch(
        tokens=laid_out(batch.input_ids, pad_token_id)[None],
        labels=targets.masked_fill(~supervised, 0)[None],
        loss_mask=supervised.float()[None],
        position_ids=views.position_ids_from_lengths(edges.diff().tolist()).to(device)[None],
        packed_seq_params=params_class(**params),
    )


def megatron_batches(
    rows: Iterable[Mapping[str, Any]], params_class: type, *, device: torch.device | str = "cpu", **layout: Any
) -> Iterator[MegatronBatch]:
    """The rows of a packed folder as micro-batches: the data iterator of a Megatron-core schedule.

    Args:
        rows: In the order of this rank: a ``PackedDataset``, or its rows as a ``RowSampler`` of this data-parallel
            rank orders them. Ranks of one tensor-, context- or pipeline-parallel group take the same rows.
        params_class: ``megatron.core.packed_seq_params.PackedSeqParams``.
        device: Where the micro-batches are to be.
        **layout: As ``megatron_batch`` takes it.

    Yields:
        One micro-batch for each row.

    Raises:
        FeedError: The columns of a row do not fit each other.
        BatchError: As ``megatron_batch``.
    """
    for row in rows:
        yield megatron_batch(collate_packed_rows([row]).to(torch.device(device)), params_class, **layout)


def token_loss_of(
    losses: torch.Tensor, loss_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The loss function of a Megatron-core schedule, for ``calculate_per_token_loss=True``.

    Megatron adds up sums and counts over micro-batches, pipeline and data-parallel ranks, and divides the gradients
    once: the token-level loss of the whole step.

    Args:
        losses: [1, S] as ``GPTModel`` returns them; those of masked slots are not read.
        loss_mask: [1, S] of the same micro-batch.

    Returns:
        The sum over supervised tokens; their number, int32; both for the log, as ``{"lm loss": [sum, number]}``.

    Raises:
        BatchError: The shapes differ.

    Example:
        >>> token_loss_of(torch.tensor([[1.0, 3.0, float("nan")]]), torch.tensor([[1.0, 1.0, 0.0]]))[:2]
        (tensor(4.), tensor(2, dtype=torch.int32))
    """
    if losses.shape != loss_mask.shape:
        raise BatchError(
            f"losses have shape {list(losses.shape)} and loss_mask {list(loss_mask.shape)}, expected the same; pass "
            f"the mask of the micro-batch that the model was called with"
        )
    supervised = loss_mask > 0
    total = losses.float().masked_select(supervised).sum()
    number = supervised.sum().int()
    return total, number, {"lm loss": torch.stack([total.detach(), number.float()])}

"""``seq_idx`` as causal_conv1d and mamba_ssm take it, made and read.

Algorithm: the number of each slot's document, int32; the kernels carry state from one slot to the next only
where the number stays the same. Guarantee: the tail is one more number, so that no state runs into it and it
never is negative (causal_conv1d skips negative slots, mamba_ssm does not). Empty documents are skipped
numbers, and come back; without a tail, those at the end of a row do not. Price: O(slots).
"""

from collections.abc import Sequence

import torch

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import int32_tensor, without_tail
from hermetic.batch.dialects.rows import document_ids_of_rows, rows_from_numbers
from hermetic.batch.integers import int64_array
from hermetic.errors import BatchError


def mamba_seq_idx(rows: Sequence[Boundaries], *, capacity: int) -> torch.Tensor:
    """Which document each slot belongs to, in the form of Mamba's kernels.

    Args:
        rows: The documents of each of B rows; ``[boundaries]`` for a flat batch.
        capacity: Slots of each row; the length of the batch if it is flat.

    Returns:
        [B, capacity] int32, 0-based in each row, the padding numbered after the last document.

    Raises:
        BatchError: If a row has more tokens than ``capacity``.

    Example:
        >>> mamba_seq_idx([Boundaries.from_lengths([2, 1])], capacity=5)
        tensor([[0, 0, 1, 2, 2]], dtype=torch.int32)
    """
    ids = document_ids_of_rows(rows, capacity)
    tail_ids = torch.tensor([row.num_documents for row in rows], dtype=torch.int32)
    return torch.where(ids < 0, tail_ids[:, None], ids)


def rows_from_mamba_seq_idx(seq_idx: torch.Tensor, *, num_tokens: Sequence[int] | None = None) -> list[Boundaries]:
    """Read the documents of each row from ``seq_idx``.

    Args:
        seq_idx: [B, capacity] int32, 0-based in each row and never falling.
        num_tokens: Real tokens of each of the B rows; what lies beyond is the tail. Default: all are real,
            and a tail is read as a document.

    Returns:
        B boundaries. A gap in a row's numbers is an empty document.

    Raises:
        BatchError: If the tensor is not int32 of two dimensions, a number is negative, falls or comes back,
            or the tail of a row is not one segment.

    Example:
        >>> seq_idx = mamba_seq_idx([Boundaries.from_lengths([2, 1])], capacity=5)
        >>> rows_from_mamba_seq_idx(seq_idx, num_tokens=[3])
        [Boundaries(document_lengths=(2, 1))]
    """
    numbers = int64_array(int32_tensor(seq_idx, name="seq_idx"), name="seq_idx", ndims=(2,), error=BatchError)
    rows = rows_from_numbers(numbers, name="seq_idx", first=0, padding=False)
    if num_tokens is None:
        return rows
    if len(num_tokens) != len(rows):
        raise BatchError(
            f"num_tokens has {len(num_tokens)} values, expected {len(rows)}, one for each row of seq_idx; a flat "
            f"batch is one row"
        )
    return [
        without_tail(row, real, name=f"seq_idx[{index}]")
        for index, (row, real) in enumerate(zip(rows, num_tokens, strict=True))
    ]

"""Preference pairs on packed rows: chosen and rejected are documents of one stream, named by their numbers.

Guarantee: a pair is made of two different documents; what fills rows up is no document, so it is in no pair, and
batches that are joined lose it. Price: O(documents) on the host.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from hermetic.batch import Boundaries, PackedBatch
from hermetic.errors import LossError

NEITHER: Final = 0
CHOSEN: Final = 1
REJECTED: Final = 2
"""The roles of documents in packed folders."""

Pairs = torch.Tensor | Sequence[Sequence[int]]
"""[P, 2] document numbers: chosen, rejected."""

Roles = torch.Tensor | Sequence[int]
"""[D] 0 for neither, 1 for chosen, 2 for rejected."""


def pairs_from_roles(roles: Roles) -> torch.Tensor:
    """Pairs from the roles of a batch's documents, in which a rejected document follows its chosen one.

    Args:
        roles: [D], as packed folders have them: 1 chosen, 2 rejected, 0 neither.

    Returns:
        [P, 2] int64 on the CPU: the numbers of the chosen and of the rejected document.

    Raises:
        LossError: If a role is unknown, or one half of a pair is not beside the other.

    Example:
        >>> pairs_from_roles([1, 2, 0, 1, 2])
        tensor([[0, 1],
                [3, 4]])
    """
    values = checked_roles(roles)
    chosen, rejected = (values == CHOSEN).nonzero().squeeze(1), (values == REJECTED).nonzero().squeeze(1)
    expected = torch.isin(torch.arange(len(values)), chosen + 1)
    torn = (expected != (values == REJECTED)).nonzero()
    if len(torn) or len(chosen) != len(rejected):
        document = int(torn[0]) if len(torn) else len(values) - 1
        raise LossError(
            f"document {document} has the role {int(values[document])}, expected each chosen document (1) to stand "
            f"right before its rejected one (2); name pairs that stand apart by their numbers"
        )
    return torch.stack([chosen, rejected], dim=1)


def join_pairs(chosen: PackedBatch, rejected: PackedBatch) -> tuple[PackedBatch, torch.Tensor]:
    """One batch of the documents of two, of which the i-th are a pair.

    The padded tail of each is left out: between the two it would be a document that is none.

    Args:
        chosen: P documents.
        rejected: P documents on the same device.

    Returns:
        A batch of 2P documents without a tail, and [P, 2] their pairs.

    Raises:
        LossError: If the two hold different numbers of documents.

    Example:
        Rows of two documents of 50 tokens, padded to 500.

        >>> from hermetic.batch import collate
        >>> row = collate([{"input_ids": [7] * 50}, {"input_ids": [8] * 50}], pad_to=500)
        >>> batch, pairs = join_pairs(row, row)
        >>> batch.boundaries.cu_seqlens.tolist(), pairs.tolist()
        ([0, 50, 100, 150, 200], [[0, 2], [1, 3]])
    """
    numbers = [batch.boundaries.num_documents for batch in (chosen, rejected)]
    if numbers[0] != numbers[1]:
        raise LossError(
            f"chosen has {numbers[0]} documents and rejected {numbers[1]}, expected as many; the i-th of both are a "
            f"pair"
        )
    parts = [(batch, batch.boundaries.num_tokens) for batch in (chosen, rejected)]
    joined = PackedBatch(
        input_ids=torch.cat([batch.input_ids[:length] for batch, length in parts]),
        labels=torch.cat([batch.labels[:length] for batch, length in parts]),
        boundaries=Boundaries(
            document_lengths=(*chosen.boundaries.document_lengths, *rejected.boundaries.document_lengths)
        ),
    )
    first = torch.arange(numbers[0])
    return joined, torch.stack([first, first + numbers[0]], dim=1)


def checked_pairs(pairs: Pairs, documents: int, device: torch.device) -> torch.Tensor:
    """Pairs that name documents.

    Args:
        pairs: [P, 2].
        documents: D.
        device: Where they are needed.

    Returns:
        [P, 2] int64.

    Raises:
        LossError: If they are not whole numbers of this shape, beyond the documents, or twice the same.

    Example:
        >>> checked_pairs([(0, 1)], 2, torch.device("cpu"))
        tensor([[0, 1]])
    """
    values = _integers(pairs, "pairs")
    values = values.reshape(0, 2) if values.numel() == 0 else values
    if values.ndim != 2 or values.shape[1] != 2:
        raise LossError(
            f"pairs have shape {list(values.shape)}, expected [P, 2]: the chosen document, the rejected one"
        )
    wrong = ((values < 0) | (values >= documents)).any(dim=1) | (values[:, 0] == values[:, 1])
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0])
        raise LossError(
            f"pairs[{index}] is {values[index].tolist()}, expected two different documents from 0 to {documents - 1}"
        )
    return values.to(device)


def checked_roles(roles: Roles) -> torch.Tensor:
    """Roles that are known.

    Args:
        roles: [D].

    Returns:
        [D] int64 on the CPU.

    Raises:
        LossError: If they are not of one dimension, or one is unknown.

    Example:
        >>> checked_roles([0, 1, 2])
        tensor([0, 1, 2])
    """
    values = _integers(roles, "roles")
    if values.ndim != 1:
        raise LossError(f"roles have shape {list(values.shape)}, expected [D]: one for each document")
    unknown = ((values < NEITHER) | (values > REJECTED)).nonzero()
    if len(unknown):
        document = int(unknown[0])
        raise LossError(
            f"roles[{document}] is {int(values[document])}, expected {CHOSEN} for chosen, {REJECTED} for rejected or "
            f"{NEITHER}"
        )
    return values


def _integers(values: Any, name: str) -> torch.Tensor:
    try:
        found = torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise LossError(f"{name} cannot be read as a table of numbers: {error}; expected whole numbers") from error
    if found.numel() and (found.dtype.is_floating_point or found.dtype.is_complex or found.dtype == torch.bool):
        raise LossError(f"{name} have dtype {found.dtype}, expected whole numbers")
    return found.to(torch.int64)

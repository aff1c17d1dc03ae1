"""Checks of sizes and ranges: tensors of one length, ids that exist, and what 32-bit integers can count."""

from collections.abc import Iterator

import numpy as np

from hermetic.audit.batch.facts import BatchFacts
from hermetic.audit.batch.labels import of_a_decoder
from hermetic.audit.batch.names import LABELS, MASK, PAST, POSITIONS, TOKENS
from hermetic.audit.batch.tensors import Tensor, per_token
from hermetic.audit.finding import AuditFinding
from hermetic.audit.reading import over_pairs, positions_of, starts_fit
from hermetic.constants import INT32_MAX

LARGEST_SQUARE = 46340
"""46,341 squared is above 2**31 - 1."""


def unequal(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM660: tensors with another number of values than there are tokens."""
    for tensor in per_token(facts.batch):
        if not _has_one_for_each(facts, tensor):
            shape = f"{int(tensor.counts.sum())} values" if tensor.counts is not None else list(tensor.values.shape)
            yield facts.finding(
                "HM660",
                tensor.name,
                what=f"{tensor.name} is {shape}, and the batch has {facts.batch.shape}",
                value=f"{tensor.values.size} values",
                way_out="Pad every tensor of a row in one place and to one length",
            )


def _has_one_for_each(facts: BatchFacts, tensor: Tensor) -> bool:
    if facts.batch.fits(tensor.name):
        return True
    if tensor.name in LABELS and tensor.values.ndim == 1:
        return tensor.values.size in {facts.batch.num_rows, len(facts.lengths)}  # classes of rows or of documents
    if tensor.name in LABELS and of_a_decoder(facts.batch):
        return True
    if tensor.name == MASK and facts.batch.settings.get(PAST):
        return True  # over what was read before, too
    if tensor.name in POSITIONS:
        return positions_of(facts.batch, tensor.name) is not None or starts_fit(facts.batch, tensor)
    return tensor.name == MASK and over_pairs(facts.batch) is not None


def negative_ids(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM661: token ids below 0."""
    name = facts.batch.first(TOKENS)
    ids = None if name is None else facts.batch.flat(name)
    if ids is not None and (ids < 0).any():
        slot = int(np.argmax(ids < 0))
        yield facts.finding(
            "HM661",
            str(name),
            what=f"{name} is {ids[slot]} at {facts.batch.where(slot)}: an embedding has no such row",
            value=f"{int((ids < 0).sum())} ids",
            way_out="Pad with an id that exists and set its label to -100; replace placeholders before the model",
        )


def beyond_int32(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM760: more than 32-bit offsets of kernels can count."""
    slots, heads, width = facts.batch.num_slots, facts.heads or 1, facts.head_dim or 1
    if slots * heads * width > INT32_MAX:
        counted = f"{slots:,} tokens" + (f" x {heads} heads x {width}" if heads * width > 1 else "")
        yield facts.finding(
            "HM760",
            facts.batch.first(TOKENS) or "batch",
            certainty="certain" if slots > INT32_MAX else "depends on version",
            versions=None if slots > INT32_MAX else "kernels with 32-bit offsets, such as flash-attention 2",
            what=f"{counted} are {slots * heads * width:,} elements, above the {INT32_MAX:,} that a 32-bit offset "
            "counts",
            value=f"{slots * heads * width}",
            way_out="Put fewer tokens into one call",
        )


def square_beyond_int32(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM761: a mask over pairs that 32-bit arithmetic over its cells cannot index."""
    tensor = facts.batch.tensors.get(MASK)
    width = 0 if tensor is None or tensor.values.ndim < 3 else int(tensor.values.shape[-1])
    if width > LARGEST_SQUARE:
        yield facts.finding(
            "HM761",
            MASK,
            what=f"attention_mask is over pairs of {width:,} tokens: cell numbers are above {INT32_MAX:,} from "
            f"{LARGEST_SQUARE + 1:,} tokens on, and 32-bit arithmetic wraps around",
            value=f"{width} x {width}",
            certainty="depends on version",
            versions="flex attention of torch, compiled, with indices of 32 bits",
            way_out="Compare one number of a document per token, with no table of [S, S]",
        )

"""Checks of ``attention_mask``: what a 2-D one hides, and what one over pairs of tokens lets through."""

from collections.abc import Iterator

import numpy as np

from hermetic.audit.batch.facts import BatchFacts
from hermetic.audit.batch.names import MASK
from hermetic.audit.batch.tensors import Bools
from hermetic.audit.finding import AuditFinding
from hermetic.audit.reading import is_of_ones, over_pairs

_LEAVE_OUT = (
    "Leave it out: with no mask, no cache and positions that restart, transformers looks for documents; or seal"
)


def all_ones(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM101: a mask of ones beside packed documents."""
    mask = facts.batch.flat(MASK)
    if mask is not None and facts.packed and (mask == 1).all():
        yield facts.finding(
            "HM101",
            MASK,
            what="an all-ones attention_mask beside packed documents: with sdpa, eager and flex attention transformers "
            "then looks for none",
            value=f"{mask.size} ones",
            way_out=_LEAVE_OUT,
        )


def with_zeros(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM170: a mask that hides padding beside packed documents."""
    mask = facts.batch.flat(MASK)
    if mask is not None and facts.packed and mask.max() == 1 and not mask.all():
        yield facts.finding(
            "HM170",
            MASK,
            what="a 2-D attention_mask with zeros beside packed documents: transformers then looks for none, and flash "
            "attention takes what is not 0 in a row for one document, edges or not",
            value=f"{int((mask == 0).sum())} zeros",
            way_out="Leave it out and make the padding one more segment, as PackedBatch.model_inputs() does; or seal",
        )


def numbers(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM103: numbers of documents in a 2-D mask."""
    mask = facts.batch.flat(MASK)
    if mask is not None and (mask > 1).any():
        yield facts.finding(
            "HM103",
            MASK,
            what="document numbers in a 2-D attention_mask: transformers makes booleans of them, and a row is one "
            "document",
            value=f"numbers up to {mask.max()}",
            way_out="Pass document_ids to a sealed model, or positions that restart and no mask",
        )


def cache(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM102: a cache is asked for beside packed documents."""
    if facts.batch.settings.get("use_cache") and facts.packed:
        yield facts.finding(
            "HM102",
            "use_cache",
            what="use_cache beside packed documents: with sdpa, eager and flex attention transformers then looks for "
            "none",
            value="True",
            way_out="Pass use_cache=False, or seal the model",
        )


def booleans(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM109: a mask over pairs of booleans, or of ones and zeros, which adding to scores makes harmless."""
    if over_pairs(facts.batch) is None:
        return
    tensor = facts.batch.tensors[MASK]
    kind = tensor.values.dtype.kind
    if kind == "b":
        yield facts.finding(
            "HM109",
            MASK,
            certainty="depends on version",
            versions="eager attention of any transformers; sdpa takes booleans for what they are",
            what="a mask of booleans over pairs of tokens: eager attention adds it to scores, and it blocks nothing",
            value=f"{tensor.dtype or 'booleans'} of shape {list(tensor.values.shape)}",
            way_out="Pass 0 where a token may see and the lowest number of the dtype where not: "
            "hermetic.batch.dialects.additive_mask",
        )
    elif is_of_ones(tensor.values):
        yield facts.finding(
            "HM109",
            MASK,
            what="a mask of ones and zeros over pairs of tokens: it is added to scores, and blocks nothing",
            value=f"{tensor.dtype or 'numbers'} of shape {list(tensor.values.shape)}",
            way_out="Pass 0 where a token may see and the lowest number of the dtype where not: "
            "hermetic.batch.dialects.additive_mask",
        )


def not_finite(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM172: NaN or positive infinity in a mask that is added to scores."""
    tensor = facts.batch.tensors.get(MASK)
    if tensor is None or tensor.values.dtype.kind != "f":
        return
    wrong = np.isnan(tensor.values) | np.isposinf(tensor.values)
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        yield facts.finding(
            "HM172",
            MASK,
            what=f"attention_mask{where} is {tensor.values[tuple(where)]}: every score of that row becomes NaN",
            value=f"{int(wrong.sum())} values",
            way_out="Pass 0 or the lowest number of the dtype: hermetic.batch.dialects.additive_mask; 0 times "
            "minus infinity is NaN",
        )


def lets_through(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM173: a mask over pairs with open cells between documents."""
    pairs = over_pairs(facts.batch)
    if pairs is None:
        return
    number = np.cumsum(facts.starts)
    for row, (sees, low) in enumerate(zip(pairs, facts.batch.rows, strict=False)):
        width = len(sees)
        mine, real = number[low : low + width], facts.real[low : low + width]
        wrong = sees & (mine[:, None] != mine[None, :]) & real[:, None] & real[None, :]
        if wrong.any():
            query, key = np.argwhere(wrong)[0].tolist()
            yield facts.finding(
                "HM173",
                MASK,
                what=f"attention_mask lets token {query} of row {row} see token {key}, which is of another document by "
                f"{facts.views[0].name}",
                value=f"{_cells(wrong)} cells in row {row}",
                way_out="Make the mask from the boundaries: hermetic.batch.dialects.additive_mask",
            )
            return


def _cells(cells: Bools) -> int:
    return int(np.count_nonzero(cells))


def blind_rows(facts: BatchFacts) -> Iterator[AuditFinding]:
    """HM174: a slot that sees nothing, itself included, by minus infinity."""
    tensor = facts.batch.tensors.get(MASK)
    if tensor is None or tensor.values.dtype.kind != "f" or tensor.values.ndim < 3:
        return
    blind = np.isneginf(tensor.values).all(axis=-1)
    if blind.any():
        where = np.argwhere(blind)[0].tolist()
        yield facts.finding(
            "HM174",
            MASK,
            certainty="depends on version",
            versions="eager attention, measured with transformers 5.24; sdpa of torch 2.13 gives numbers",
            what=f"attention_mask{where} is minus infinity throughout: the softmax of that row is NaN, and the next "
            "layer carries it to real tokens",
            value=f"{int(blind.sum())} slots",
            way_out="Let padding see itself, as one segment of its own, or use the dtype's lowest finite number",
        )

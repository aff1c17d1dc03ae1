"""The plan of a corpus: one for all of it, from lengths alone."""

import numpy as np

from hermetic.data.run.corpus import Corpus, Draw, records_of
from hermetic.data.run.options import PackOptions
from hermetic.data.sources import SourceFile, location
from hermetic.errors import DataError, DocumentTooLongError
from hermetic.plan import Plan, plan_rows

__all__ = ["place_of", "plan_units"]


def plan_units(corpus: Corpus, draw: Draw, files: list[SourceFile], options: PackOptions) -> Plan:
    """Plan the units that were drawn.

    Raises:
        DocumentTooLongError: If a unit does not fit and the policy is ``"error"``; names its source and record.
        DataError: If a preference pair would be cut, or nothing is left to plan.
    """
    lengths = corpus.unit_lengths if draw.units is None else corpus.unit_lengths[draw.units]
    if not len(lengths):
        skipped = sum(len(receipt.skipped) for receipt in corpus.receipts)
        raise DataError(
            f"no document is left to pack: {skipped} records were skipped and {len(draw.left_out)} documents left out "
            "by weights; expected at least one"
        )
    _check_pairs(corpus, draw, files, options)
    try:
        plan = plan_rows(
            lengths, options.capacity, strategy=options.strategy, on_overflow=options.on_overflow, seed=options.seed
        )
    except DocumentTooLongError as error:
        raise DocumentTooLongError(f"{_place(corpus, draw, files, lengths > options.capacity)}: {error}") from error
    if plan.num_rows == 0:
        raise DataError(
            f"{files[0].name}: all {len(lengths)} documents are longer than the capacity of {options.capacity} "
            "tokens and were dropped, expected at least one that fits; raise the capacity or choose another "
            "policy"
        )
    return plan


def _check_pairs(corpus: Corpus, draw: Draw, files: list[SourceFile], options: PackOptions) -> None:
    """A pair that is cut is no pair: nobody could compare what is left of its answers."""
    if corpus.unit_edges is None:
        return
    units = np.arange(corpus.num_units) if draw.units is None else draw.units
    pairs = np.diff(corpus.unit_edges)[units] == 2
    cut = pairs & (corpus.unit_lengths[units] > options.capacity)
    whole_stream = options.strategy == "concat_then_split"
    if pairs.any() and (whole_stream or (cut.any() and options.on_overflow in {"truncate", "split"})):
        what = "strategy concat_then_split" if whole_stream else f"on_overflow {options.on_overflow!r}"
        raise DataError(
            f"{_place(corpus, draw, files, pairs if whole_stream else cut)}: {what} would cut a preference pair, whose "
            "answers have to stay whole beside each other; expected pairs that fit a row, or on_overflow 'drop'"
        )


def _place(
    corpus: Corpus, draw: Draw, files: list[SourceFile], wrong: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
) -> str:
    """Source and record of the first of the drawn units that is wrong."""
    unit = draw.of(np.array([int(np.argmax(wrong))]))
    return place_of(corpus, files, int(corpus.documents_of_units(unit)[0][0]))


def place_of(corpus: Corpus, files: list[SourceFile], document: int) -> str:
    """Where a document stands, as ``file:number``."""
    (file,), (number,) = records_of(corpus, np.array([document]))
    return location(files[file].name, number)

"""A packed folder as one page: whether all is in it, how full its rows are, its seams, its lengths, and the ledger.

Algorithm: the folder is opened, and so verified, once; everything is counted from it. Guarantee: every number is of
rows whose checksums were right just before. Price: that of :func:`hermetic.data.open_packed`, and a second for plots.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from hermetic.data import PackedData, open_packed
from hermetic.data.manifest import PackManifest
from hermetic.data.show import require_tokenizer_of
from hermetic.data.summary import PackedSummary, summarize
from hermetic.markup import Histogram, Section, Verdict, counted, document, escaped, facts, finding, section, soft
from hermetic.report.ledger import ledger, sources
from hermetic.report.mask import mask_of
from hermetic.report.seams import seams

_STRETCHES = 20
"""Bars of the plot of how full rows are."""


def pack_page(folder: str | os.PathLike[str] | PackedData, *, tokenizer: Any = None) -> str:
    """What a packed folder holds, as the text of an HTML file.

    Args:
        folder: one that ``hermetic pack`` made, or what ``open_packed`` returned of it.
        tokenizer: the loaded tokenizer that made the rows, to show texts at seams; without one, tokens stay ids.

    Raises:
        PackedDataError: it is no packed folder, or is damaged.
        DataError: the tokenizer is not the one that made the rows.
        MissingDependencyError: matplotlib or datasets is not installed.
    """
    packed = folder if isinstance(folder, PackedData) else open_packed(folder)
    if tokenizer is not None:
        require_tokenizer_of(packed, tokenizer, getattr(tokenizer, "name_or_path", type(tokenizer).__name__))
    summary = summarize(packed)
    sections = (
        _to_do(summary),
        _utilization(packed),
        _lengths(summary),
        seams(packed, tokenizer),
        _mask(packed),
        ledger(summary.manifest),
        sources(summary.manifest),
    )
    return document(_verdict(summary), sections)


def is_whole(manifest: PackManifest) -> bool:
    """Whether nothing was cut, dropped or skipped."""
    return not (manifest.tokens_lost or manifest.records_skipped)


def _verdict(summary: PackedSummary) -> Verdict:
    manifest, whole = summary.manifest, is_whole(summary.manifest)
    documents = counted(summary.documents, "document")
    rows = f"{counted(manifest.rows, 'row')} of {counted(manifest.capacity, 'token')}"
    return Verdict(
        kind="pack",
        subject=summary.path,
        look="good" if whole else "unsure",
        word="packed whole" if whole else "packed with losses",
        sentence=f"{documents} in {rows}, {manifest.utilization:.1%} full. {_lost(manifest)}",
        facts=f"From {manifest.source_name}, by {manifest.strategy}. Read again and held against its checksums: "
        f"{counted(summary.files_verified, 'file')}.",
    )


def _lost(manifest: PackManifest) -> str:
    lost = [
        *([f"{counted(manifest.tokens_lost, 'token')} beyond the capacity"] if manifest.tokens_lost else []),
        *(f"{counted(count, 'record')} skipped as {reason}" for reason, count in manifest.records_skipped.items()),
    ]
    return f"Lost: {', '.join(lost)}." if lost else "Nothing was lost."


def _to_do(summary: PackedSummary) -> Section:
    spoiled = (
        f"Train on these rows with a model that keeps documents apart, such as hermetic.seal(model) or hermetic train: "
        f"under a plain causal mask {summary.contaminated_share:.1%} of their tokens would see another document."
    )
    return section("What to do", *_losses(summary.manifest), f"<p>{escaped(spoiled)}</p>")


def _losses(manifest: PackManifest) -> Iterator[str]:
    if manifest.tokens_lost:
        yield finding(
            code="",
            look="unsure",
            what=f"In no row: {counted(manifest.tokens_lost, 'token')} of {manifest.tokens_read:,}, by "
            f"on_overflow={manifest.on_overflow}; documents dropped: {manifest.documents_dropped:,}, cut: "
            f"{manifest.documents_truncated:,}",
            way_out="If they matter, pack again with a larger --capacity, or with --on-overflow split.",
        )
    for reason, count in manifest.records_skipped.items():
        yield finding(
            code="",
            look="unsure",
            what=f"Skipped: {counted(count, 'record')}, as {reason}",
            way_out="If they matter, mend them: with --on-bad-record error the run ends at the first one and names it.",
        )
    if manifest.documents_without_supervision:
        yield finding(
            code="",
            look="unsure",
            what=f"Without a supervised token: {counted(manifest.documents_without_supervision, 'document')}, of cost "
            "and no use",
            way_out=f"Leave them out, or supervise more than train_on={manifest.train_on} does.",
        )


def _utilization(packed: PackedData) -> Section:
    manifest = packed.manifest
    edges = np.cumsum(packed.documents_per_row) - packed.documents_per_row
    filled = np.add.reduceat(packed.document_lengths, edges)
    places = np.minimum(filled * _STRETCHES // manifest.capacity, _STRETCHES - 1)
    counts = np.bincount(places, minlength=_STRETCHES).tolist()
    percent = 100 // _STRETCHES
    full = int((filled == manifest.capacity).sum())
    plot = Histogram(
        name="how full rows are",
        about=f"{full:,} of {manifest.rows:,} rows are full to the last token; the emptiest holds {filled.min():,}.",
        edges=[f"{percent * at}%" for at in range(_STRETCHES + 1)],
        bars=[f"{percent * at}% to {percent * (at + 1)}%" for at in range(_STRETCHES)],
        counts=counts,
        across="share of the row that is filled",
        up="rows",
    )
    pairs = (
        ("utilization", f"{manifest.utilization:.2%}"),
        ("rows", f"{manifest.rows:,}; no packing of these documents needs fewer than {manifest.lower_bound:,}"),
        ("documents per row", f"{len(packed.document_lengths) / manifest.rows:.1f}"),
        ("padded to the longest instead", f"{1.0 - manifest.padding_waste:.2%} utilization"),
    )
    return section("Utilization", facts(pairs, name="Utilization"), plot.figure())


def _lengths(summary: PackedSummary) -> Section:
    bars = summary.histogram
    plot = Histogram(
        name="tokens of a document",
        about=f"From {summary.shortest:,} to {summary.longest:,} tokens, half of them up to {summary.median:,.0f}, "
        f"{summary.mean:,.1f} on average. Each bar is twice as wide as the one before.",
        edges=["1", *(f"{bar.high:,}" for bar in bars)],
        bars=[f"{bar.low:,} to {bar.high:,}" for bar in bars],
        counts=[bar.count for bar in bars],
        across="tokens of a document",
        up="documents",
    )
    return section("Lengths", plot.figure())


def _mask(packed: PackedData) -> Section | None:
    several = np.flatnonzero(packed.documents_per_row > 1)
    if not len(several):
        return None
    row = int(several[0])
    how = f"Row {row:,}: what each of its tokens may read, and what a plain causal mask would let it read."
    lengths = [len(document["input_ids"]) for document in packed.documents_of_row(row)]
    return section("Documents and mask of a row", soft(how), mask_of(lengths))

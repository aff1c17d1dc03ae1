"""Everything that happened, added up: the manifest and the files beside the rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

import hermetic
from hermetic.data.manifest import FORMAT_VERSION, MANIFEST_NAME, PackManifest, Shard, SourceEntry
from hermetic.data.run.corpus import Corpus, Draw
from hermetic.data.run.losses import LOSSES_NAME, write_losses
from hermetic.data.run.options import PackOptions, TokenizerRef
from hermetic.data.run.shards import ShardReceipt
from hermetic.data.run.table import DOCUMENT_COLUMNS, TOKEN_COLUMNS, write_dataset_files
from hermetic.data.sources import SourceFile, sha256_of_file
from hermetic.data.statistics import padding_waste
from hermetic.files import write_text
from hermetic.plan import Plan

__all__ = ["Outcome", "make_manifest"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """A run whose rows are written."""

    corpus: Corpus
    draw: Draw
    plan: Plan
    files: tuple[SourceFile, ...]
    options: PackOptions
    shards: tuple[ShardReceipt, ...]
    tokenizer: TokenizerRef
    run: str
    """The hash of all that decided it."""


def make_manifest(folder: Path, outcome: Outcome) -> PackManifest:
    """Write what stands beside the rows, and the manifest last."""
    corpus, draw, plan, shards = outcome.corpus, outcome.draw, outcome.plan, outcome.shards
    names = _public_names(outcome.files)
    write_losses(folder, corpus, draw, plan, names)
    placed = _placed_lengths(corpus, draw, plan)
    manifest = PackManifest(
        format_version=FORMAT_VERSION,
        hermetic_version=hermetic.__version__,
        source_files=_entries(outcome, names),
        tokenizer_fingerprint=outcome.tokenizer.fingerprint,
        template_date=None if outcome.tokenizer.today is None else outcome.tokenizer.today.isoformat(),
        train_on=outcome.options.train_on,
        capacity=plan.capacity,
        strategy=plan.strategy,
        on_overflow=plan.on_overflow,
        on_bad_record=outcome.options.on_bad_record,
        seed=plan.seed,
        file_format=outcome.options.file_format,
        **_documents(corpus, draw, plan),
        **_tokens(corpus, draw, plan),
        fragments=_fragments(plan),
        documents_without_supervision=sum(shard.documents_without_supervision for shard in shards),
        supervised_tokens=sum(shard.supervised_tokens for shard in shards),
        rows=plan.num_rows,
        utilization=plan.utilization,
        lower_bound=plan.lower_bound,
        longest_document=int(placed.max()),
        mean_document=float(placed.mean()),
        padding_waste=padding_waste(placed),
        shards=tuple(
            Shard(name=s.name, sha256=s.sha256, rows=s.rows, documents=s.documents, tokens=s.tokens) for s in shards
        ),
        files=_files(folder, outcome),
    )
    write_text(folder / MANIFEST_NAME, manifest.to_json())
    return manifest


def _entries(outcome: Outcome, names: list[str]) -> tuple[SourceEntry, ...]:
    weights = outcome.options.weights
    return tuple(
        SourceEntry(name=name, weight=float(weights[file.source]), sha256=file.sha256, bytes=file.size)
        for name, file in zip(names, outcome.files, strict=True)
    )


def _files(folder: Path, outcome: Outcome) -> dict[str, str]:
    """The SHA-256 of every file; the small ones that ``datasets`` wants are written before."""
    beside = [LOSSES_NAME]
    if outcome.options.file_format == "arrow":
        kept = DOCUMENT_COLUMNS if outcome.corpus.unit_edges is not None else DOCUMENT_COLUMNS[:-1]
        shards = [shard.name for shard in outcome.shards]
        write_dataset_files(folder, shards, (*TOKEN_COLUMNS, *kept), fingerprint=outcome.run[:16])
        beside += ["dataset_info.json", "state.json"]
    written = {name: sha256_of_file(folder / name) for name in beside}
    return dict(sorted((written | {shard.name: shard.sha256 for shard in outcome.shards}).items()))


def _documents(corpus: Corpus, draw: Draw, plan: Plan) -> dict[str, Any]:
    reasons = Counter(one.reason for receipt in corpus.receipts for one in receipt.skipped)
    pairs = sum(receipt.pairs for receipt in corpus.receipts)
    left_out, dropped = _count(corpus, draw.left_out), _count(corpus, draw.of(plan.dropped.astype(np.int64)))
    drawn = corpus.num_documents if draw.units is None else _count(corpus, draw.units)
    return {
        "records_read": corpus.num_documents - pairs + reasons.total(),
        "records_skipped": dict(sorted(reasons.items())),
        "preference_pairs": pairs,
        "documents_read": corpus.num_documents,
        "documents_repeated": drawn - (corpus.num_documents - left_out),
        "documents_left_out": left_out,
        "documents_placed": drawn - dropped,
        "documents_dropped": dropped,
        "documents_truncated": int((plan.lengths > plan.capacity).sum()) if plan.on_overflow == "truncate" else 0,
    }


def _tokens(corpus: Corpus, draw: Draw, plan: Plan) -> dict[str, Any]:
    read = int(corpus.offsets[-1])
    left_out = int(corpus.unit_lengths[draw.left_out].sum())
    drawn = int(plan.lengths.sum(dtype=np.int64))
    return {
        "tokens_read": read,
        "tokens_repeated": drawn - (read - left_out),
        "tokens_left_out": left_out,
        "tokens_placed": plan.placed_tokens,
        "tokens_lost": plan.lost_tokens,
    }


def _count(corpus: Corpus, units: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
    """Documents in units."""
    if corpus.unit_edges is None:
        return len(units)
    return int(np.diff(corpus.unit_edges)[units].sum())


def _placed_lengths(corpus: Corpus, draw: Draw, plan: Plan) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Tokens of every document or fragment in the rows, in any order."""
    numbers, _, lengths, _ = plan.pieces(0, plan.num_rows)
    if corpus.unit_edges is None:
        return lengths.astype(np.int64)
    units = draw.of(numbers)
    pairs = np.diff(corpus.unit_edges)[units] == 2
    of_pairs = corpus.documents_of_units(units[pairs])[0]
    return np.concatenate([lengths[~pairs], corpus.lengths[of_pairs]]).astype(np.int64)


def _fragments(plan: Plan) -> int:
    """Pieces that are not a whole document, under the policy that makes such pieces."""
    if plan.fragments is None:
        return 0
    return int((plan.fragments.length < plan.lengths[plan.fragments.document]).sum())


def _public_names(files: Sequence[SourceFile]) -> list[str]:
    """File names with as many of their folders as tell them apart.

    Example:
        ``/data/a/x.jsonl`` and ``/data/b/x.jsonl`` are ``a/x.jsonl`` and ``b/x.jsonl``; alone, one is ``x.jsonl``.
    """
    split = [PurePath(file.name).parts or (file.name,) for file in files]
    depth = 1
    while len({parts[-depth:] for parts in split}) < len(split) and depth < max(map(len, split)):
        depth += 1
    return ["/".join(parts[-depth:]).lstrip("/") for parts in split]

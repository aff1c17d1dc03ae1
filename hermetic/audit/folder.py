"""The audit of a folder that ``hermetic pack`` made: its laws, its ledger, and what its rows would do if read naively.

Algorithm: :func:`hermetic.data.check_packed` checks every law, a summary counts what is there, and small checks look at
the counts. Guarantee: nothing is run and nothing is written; a damaged folder has findings that name its files, and no
numbers. Price: three passes over the files; with ``duplicates`` that of :func:`hermetic.data.find_duplicates`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hermetic.audit.finding import AuditFinding, AuditReport, Place
from hermetic.data.check import CheckReport, PackedCheck, check_packed
from hermetic.data.duplicates import DuplicateReport, find_duplicates
from hermetic.data.manifest import MANIFEST_NAME, PackManifest
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.statistics import (
    contaminated_share,
    contamination_rule_of_thumb,
    length_histogram,
    padding_waste,
)
from hermetic.errors import AuditError


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderFacts:
    """A packed folder in numbers."""

    path: str
    laws: CheckReport
    packed: PackedData | None
    """``None`` of a damaged folder."""
    duplicates: DuplicateReport | None

    @property
    def manifest(self) -> PackManifest | None:
        """What the folder says about itself."""
        return self.packed.manifest if self.packed else None

    def finding(self, code: str, key: str, *, what: str, value: str, way_out: str) -> AuditFinding:
        """A finding about this folder."""
        place = Place(key=key, file=str(Path(self.path) / MANIFEST_NAME))
        return AuditFinding(code=code, certainty="certain", what=what, place=place, value=value, way_out=way_out)


def audit_folder(
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    duplicates: bool = False,
    threshold: float = 0.8,
) -> AuditReport:
    """Audit a packed folder.

    Args:
        path: The folder.
        tokenizer: The one that should have made the rows, a folder or a model id; without one, what needs it is not
            checked, and a note says so.
        duplicates: Whether to look for near-duplicates that share a row, which needs rensa.
        threshold: Jaccard similarity from which on two documents are near-duplicates.

    Returns:
        Findings, and as facts the ledger of documents and tokens, lengths, padding saved, and the share of tokens that
        would see a stranger under a plain causal mask, counted, with the usual estimate of it.

    Raises:
        AuditError: If it is no packed folder.
        DataError: If the tokenizer cannot be loaded, or the threshold is out of its range.
        MissingDependencyError: If datasets is not installed, or for duplicates rensa.

    Example:
        ``audit_folder("packed").sound``
    """
    if not (Path(path) / MANIFEST_NAME).is_file():
        raise AuditError(
            f"{path} has no {MANIFEST_NAME}, expected a folder that hermetic pack made; for one batch pass its file"
        )
    laws = check_packed(path, tokenizer=tokenizer)
    facts = FolderFacts(
        path=os.fspath(path),
        laws=laws,
        packed=open_packed(path) if laws.sound else None,
        duplicates=find_duplicates(path, threshold=threshold) if duplicates and laws.sound else None,
    )
    unchecked = [check for check in laws.checks if check.result == "not checked"]
    return AuditReport(
        subject=facts.path,
        kind="folder",
        stack=None,
        findings=tuple(finding for check in CHECKS.values() for finding in check(facts)),
        facts=tuple(_facts(facts)),
        notes=tuple(f"{check.law}: not checked; {check.found}" for check in unchecked),
    )


def _facts(facts: FolderFacts) -> Iterator[tuple[str, str]]:
    laws = facts.laws.checks
    yield "laws", _laws_in_words(laws)
    if facts.packed is None:
        return
    manifest, lengths = facts.packed.manifest, facts.packed.document_lengths
    skipped = sum(manifest.records_skipped.values())
    yield "records", f"{manifest.records_read:,} read, {skipped:,} skipped"
    documents = ("read", "repeated", "left_out", "placed", "dropped")
    yield "documents", ", ".join(f"{getattr(manifest, f'documents_{x}'):,} {x.replace('_', ' ')}" for x in documents)
    tokens = ("read", "repeated", "left_out", "placed", "lost")
    counted = [f"{getattr(manifest, f'tokens_{x}'):,} {x.replace('_', ' ')}" for x in tokens]
    yield "tokens", ", ".join([*counted, f"{manifest.supervised_tokens:,} supervised"])
    yield "rows", f"{manifest.rows:,} of {manifest.capacity:,} tokens, utilization {manifest.utilization:.1%}"
    yield "longest", f"{int(lengths.max()):,} of {manifest.capacity:,} tokens; {manifest.fragments:,} fragments"
    counted_share = contaminated_share(lengths, facts.packed.documents_per_row)
    estimate = contamination_rule_of_thumb(lengths, manifest.capacity)
    told = f"{counted_share:.1%} of tokens would see another document; 1 - median / capacity says {estimate:.1%}"
    yield "contaminated if read naively", told
    yield "padding saved", f"{padding_waste(lengths):.1%} of slots, if each document were padded to the longest"
    yield "lengths", ", ".join(f"{bar.low}-{bar.high}: {bar.count:,}" for bar in length_histogram(lengths))
    if facts.duplicates is not None:
        found = facts.duplicates
        yield "near-duplicates", f"{found.pairs:,} pairs, {found.pairs_in_one_row:,} of them in one row"


def _laws_in_words(laws: Iterable[PackedCheck]) -> str:
    """How many hold and, where there are some, how many do not and how many nobody looked at."""
    counts = Counter[str](check.result for check in laws)
    hold = f"{counts['passed']} {'law holds' if counts['passed'] == 1 else 'laws hold'}"
    others = (("failed", "broken"), ("not checked", "not checked"))
    return ", ".join([hold, *(f"{counts[result]} {word}" for result, word in others if counts[result])])


def _broken_laws(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM680: a law of packed folders that does not hold."""
    for check in facts.laws.checks:
        if check.result == "failed":
            yield facts.finding(
                "HM680",
                check.law,
                what=f"it does not hold that {check.law}: {check.found}",
                value=check.code or "failed",
                way_out="Copy the folder again, or pack the source again",
            )


def _unsupervised(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM480: documents without a supervised token."""
    manifest = facts.manifest
    if manifest and manifest.documents_without_supervision:
        yield facts.finding(
            "HM480",
            "documents_without_supervision",
            what=f"{manifest.documents_without_supervision:,} documents have no supervised token: they cost compute "
            "and teach nothing",
            value=f"{manifest.documents_without_supervision} of {manifest.documents_placed}",
            way_out="Leave them out, or supervise more of them; where answers were cut, raise the capacity",
        )


def _lost(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM780: tokens that were cut off or dropped."""
    manifest = facts.manifest
    if manifest and manifest.tokens_lost:
        yield facts.finding(
            "HM780",
            "tokens_lost",
            what=f"{manifest.tokens_lost:,} of {manifest.tokens_read:,} tokens are lost: "
            f"{manifest.documents_dropped:,} documents dropped, {manifest.documents_truncated:,} cut, by on_overflow "
            f"{manifest.on_overflow!r}",
            value=f"{manifest.tokens_lost} of {manifest.tokens_read} tokens",
            way_out="Raise the capacity to the longest document, or split: on_overflow='split' loses no token",
        )


def _skipped(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM781: records that could not be read and were skipped."""
    manifest = facts.manifest
    if manifest and manifest.records_skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(manifest.records_skipped.items()))
        yield facts.finding(
            "HM781",
            "records_skipped",
            what=f"of {manifest.records_read:,} records these were skipped: {reasons}",
            value=f"{sum(manifest.records_skipped.values())} of {manifest.records_read}",
            way_out="Repair them; with on_bad_record='error' the first one ends the run and is named",
        )


def _one_token(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM782: documents of one token."""
    lengths = None if facts.packed is None else facts.packed.document_lengths
    lone = 0 if lengths is None else int((lengths == 1).sum())
    if lengths is not None and lone:
        yield facts.finding(
            "HM782",
            "seq_lengths",
            what=f"{lone:,} documents have one token: nothing predicts it and it predicts nothing",
            value=f"{lone} of {len(lengths)}",
            way_out="Look at the source: empty texts with an end token, or fragments at the edge of the capacity",
        )


def _near_duplicates(facts: FolderFacts) -> Iterator[AuditFinding]:
    """HM783: near-duplicates that share a row."""
    found = facts.duplicates
    if found and found.pairs_in_one_row:
        first, second = found.examples[0].documents
        yield facts.finding(
            "HM783",
            "duplicates",
            what=f"{found.pairs_in_one_row:,} pairs of documents that are at least {found.threshold:.0%} alike share a "
            f"row, such as {first.where} and {second.where} in row {first.row}",
            value=f"{found.pairs_in_one_row} of {found.pairs} pairs",
            way_out="Remove duplicates from the source; a leak between two copies lowers the loss and hides itself",
        )


Check = Callable[[FolderFacts], Iterator[AuditFinding]]

CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "HM680": _broken_laws,
        "HM480": _unsupervised,
        "HM780": _lost,
        "HM781": _skipped,
        "HM782": _one_token,
        "HM783": _near_duplicates,
    }
)
"""A check yields findings of its own code and no other."""

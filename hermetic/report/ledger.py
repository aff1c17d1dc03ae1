"""The ledger of a pack: what was read, where every record, document and token of it went, and what it was read from.

Guarantee: each column adds up, because a manifest that does not cannot be made or read.
"""

from hermetic.data.manifest import PackManifest, SourceEntry
from hermetic.markup import Section, cell, facts, row, section, soft, table


def ledger(manifest: PackManifest) -> Section:
    """Read, and in a row or elsewhere, for documents and tokens; and the records that they came from."""
    lines = (
        ("read", manifest.documents_read, manifest.tokens_read, ""),
        ("+ copies that weights asked for", manifest.documents_repeated, manifest.tokens_repeated, ""),
        ("- left out by weights", manifest.documents_left_out, manifest.tokens_left_out, ""),
        ("- lost to overflow", manifest.documents_dropped, manifest.tokens_lost, ""),
        ("= in rows", manifest.documents_placed, manifest.tokens_placed, "sum"),
    )
    rows = (
        row(name, cell(f"{documents:,}", "number"), cell(f"{tokens:,}", "number"), line=line)
        for name, documents, tokens, line in lines
    )
    whole = table(("", "documents", "tokens"), rows, name="The ledger", numbers={1, 2})
    skipped = sum(manifest.records_skipped.values())
    pairs = (
        ("records read", f"{manifest.records_read:,}"),
        ("of them skipped", f"{skipped:,}"),
        ("of them two documents each", f"{manifest.preference_pairs:,} preference pairs"),
        ("documents cut", f"{manifest.documents_truncated:,}"),
        ("fragments in rows", f"{manifest.fragments:,}"),
        ("supervised tokens", f"{manifest.supervised_tokens:,} of {manifest.tokens_placed:,} in rows"),
    )
    how = "Every document and every token is in a row, or counted here with the reason."
    return section("Ledger", soft(how), whole, facts(pairs, name="Records, fragments and supervision"))


def sources(manifest: PackManifest) -> Section:
    """The files that were read, with their checksums, and how they were packed."""
    rows = map(_source, manifest.source_files)
    whole = table(("file", "weight", "bytes", "SHA-256"), rows, name="Files that were read", numbers={1, 2})
    pairs = (
        ("capacity", f"{manifest.capacity:,} tokens"),
        ("strategy", manifest.strategy),
        ("longer documents", manifest.on_overflow),
        ("trained on", manifest.train_on),
        ("seed", "none" if manifest.seed is None else str(manifest.seed)),
        ("tokenizer", manifest.tokenizer_fingerprint),
        ("made by", f"hermetic {manifest.hermetic_version}, as {manifest.file_format}"),
    )
    return section("Where it is from", whole, facts(pairs, name="How it was packed"))


def _source(entry: SourceEntry) -> str:
    numbers = (cell(f"{entry.weight:g}", "number"), cell(f"{entry.bytes:,}", "number"))
    return row(entry.name, *numbers, cell(entry.sha256, "hash"), kind="name")

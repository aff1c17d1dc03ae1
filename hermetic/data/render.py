"""What is known of a packed folder as rich tables; numbers come in finished, only their look is decided here."""

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.data.check import CheckReport
from hermetic.data.duplicates import DuplicateDocument, DuplicatePair, DuplicateReport
from hermetic.data.export import ExportSummary
from hermetic.data.manifest import PackManifest
from hermetic.data.show_render import printable
from hermetic.data.statistics import HistogramBar
from hermetic.data.summary import PackedSummary

__all__ = ["render", "render_check", "render_duplicates", "render_export"]

_BAR_WIDTH = 40
_RESULT_STYLES = {"passed": "green", "failed": "bold red", "not checked": "yellow"}


def render(summary: PackedSummary) -> RenderableType:
    """The counts, then the length histogram, for ``rich.console.Console.print``."""
    return Group(_counts(summary), _histogram(summary.histogram))


def _counts(summary: PackedSummary) -> Table:
    manifest = summary.manifest
    table = Table(title=Text(printable(summary.path)), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    rows: tuple[tuple[str, str | Text], ...] = (
        ("source", Text(printable(manifest.source_name))),
        ("strategy, policy", f"{manifest.strategy}, {manifest.on_overflow}"),
        ("records read", f"{manifest.records_read:,}"),
        *((f"records skipped, {reason}", f"{count:,}") for reason, count in manifest.records_skipped.items()),
        ("documents read", f"{manifest.documents_read:,}"),
        *((name, f"{count:,}") for name, count in _mixing(manifest) if count),
        ("documents placed", f"{manifest.documents_placed:,}"),
        ("documents dropped", f"{manifest.documents_dropped:,}"),
        ("documents truncated", f"{manifest.documents_truncated:,}"),
        ("fragments", f"{manifest.fragments:,}"),
        ("documents without supervision", f"{manifest.documents_without_supervision:,}"),
        ("tokens placed", f"{manifest.tokens_placed:,}"),
        ("tokens lost", f"{manifest.tokens_lost:,}"),
        ("supervised tokens", f"{manifest.supervised_tokens:,}"),
        ("rows (lower bound)", f"{manifest.rows:,} ({manifest.lower_bound:,})"),
        ("capacity", f"{manifest.capacity:,}"),
        ("documents per row", f"{summary.documents_per_row:.1f}"),
        ("utilization", f"{manifest.utilization:.2%}"),
        ("waste if all were padded to the longest", f"{summary.padding_waste:.2%}"),
        ("tokens that naive packing would contaminate", f"{summary.contaminated_share:.2%}"),
        ("the same by the rule of thumb 1 - m/L", f"{summary.contamination_rule_of_thumb:.2%}"),
        ("files with verified checksum", f"{summary.files_verified}"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _mixing(manifest: PackManifest) -> tuple[tuple[str, int], ...]:
    """What only some packs have."""
    return (
        ("preference pairs", manifest.preference_pairs),
        ("copies that weights asked for", manifest.documents_repeated),
        ("documents that weights left out", manifest.documents_left_out),
    )


def _histogram(bars: tuple[HistogramBar, ...]) -> Table:
    table = Table(title="tokens of a document", title_justify="left", box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    most = max(bar.count for bar in bars)
    for bar in bars:
        table.add_row(f"{bar.low}-{bar.high}", f"{bar.count:,}", Bar(most, 0, bar.count, width=_BAR_WIDTH))
    return table


def render_check(report: CheckReport) -> RenderableType:
    """Each law with its result and what was found, then the verdict."""
    table = Table(title=Text(printable(report.path)), title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for check in report.checks:
        found = f"{check.code}: {check.found}" if check.code else check.found
        table.add_row(Text(check.result, style=_RESULT_STYLES[check.result]), check.law, Text(printable(found)))
    return Group(
        table, Text("sound" if report.sound else "damaged", style="bold green" if report.sound else "bold red")
    )


def render_duplicates(report: DuplicateReport) -> RenderableType:
    """The counts, then the pairs that are named."""
    return Group(_duplicate_counts(report), *(_duplicate_pair(pair) for pair in report.examples))


def _duplicate_counts(report: DuplicateReport) -> Table:
    table = Table(title=Text(printable(report.path)), show_header=False, title_justify="left")
    table.add_column(style="bold", overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for name, value in (
        ("documents", f"{report.documents:,}"),
        (f"pairs with a similarity of {report.threshold:g} or more", f"{report.pairs:,}"),
        ("pairs of equal documents", f"{report.identical_pairs:,}"),
        ("pairs that share a row", f"{report.pairs_in_one_row:,}"),
        ("documents in pairs", f"{report.documents_in_pairs:,}"),
        ("share of tokens in such documents", f"{report.tokens_in_pairs / report.tokens:.2%}"),
        ("clusters (documents of the largest)", f"{report.clusters:,} ({report.largest_cluster:,})"),
        ("pairs of one record, meant to be alike", f"{report.pairs_of_one_record:,}"),
        ("pairs compared exactly", f"{report.candidates:,}"),
        ("chance to miss a pair at the threshold", f"{report.miss_at_threshold:.1e}"),
    ):
        table.add_row(name, value)
    return table


def _duplicate_pair(pair: DuplicatePair) -> Text:
    where = f"both in row {pair.documents[0].row:,}" if pair.in_one_row else "in different rows"
    lines = [f"similarity {pair.similarity:.3f}, {where}", *(_duplicate_line(document) for document in pair.documents)]
    return Text("\n".join(lines), overflow="fold")


def _duplicate_line(document: DuplicateDocument) -> str:
    text = "" if document.text is None else f": {printable(document.text)}"
    return f"  {printable(document.where)}, row {document.row:,}, {document.tokens:,} tokens{text}"


def render_export(summary: ExportSummary, out: str) -> Text:
    """What was written, in one line."""
    return Text(
        f"{summary.rows:,} rows with {summary.documents:,} documents, {summary.tokens:,} tokens, "
        f"{summary.supervised_tokens:,} of them supervised, written as {summary.format} to {out}"
    )

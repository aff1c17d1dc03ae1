"""A packed folder's summary as rich tables; numbers come in finished, only their look is decided here."""

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table

from hermetic.data.statistics import HistogramBar
from hermetic.data.summary import PackedSummary

__all__ = ["render"]

_BAR_WIDTH = 40


def render(summary: PackedSummary) -> RenderableType:
    """The counts, then the length histogram, for ``rich.console.Console.print``."""
    return Group(_counts(summary), _histogram(summary.histogram))


def _counts(summary: PackedSummary) -> Table:
    manifest = summary.manifest
    table = Table(title=summary.path, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (
        ("source", manifest.source_name),
        ("strategy, policy", f"{manifest.strategy}, {manifest.on_overflow}"),
        ("documents read", f"{manifest.documents_read:,}"),
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
    ):
        table.add_row(name, value)
    return table


def _histogram(bars: tuple[HistogramBar, ...]) -> Table:
    table = Table(title="tokens of a document", title_justify="left", box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    most = max(bar.count for bar in bars)
    for bar in bars:
        table.add_row(f"{bar.low}-{bar.high}", f"{bar.count:,}", Bar(most, 0, bar.count, width=_BAR_WIDTH))
    return table

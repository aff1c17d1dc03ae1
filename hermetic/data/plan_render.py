"""A plan's summary as rich tables; numbers come in finished, only their look is decided here."""

from rich.console import Group, RenderableType
from rich.table import Table

from hermetic.data.planning import PlanSummary
from hermetic.data.statistics import HistogramBar

__all__ = ["render_plan", "sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"


def render_plan(summary: PlanSummary) -> RenderableType:
    """The counts, then the alternatives if there are any, for ``rich.console.Console.print``."""
    return Group(_counts(summary), _alternatives(summary)) if summary.alternatives else _counts(summary)


def sparkline(bars: tuple[HistogramBar, ...]) -> str:
    """One character for each bar, as high as its count, and a blank for none; the shortest and longest around them.

    Example:
        Bars 1-16 with 2 documents, 17-32 with none and 33-64 with 1: ``1 █ ▄ 64``.
    """
    if not bars:
        return ""
    most = max(bar.count for bar in bars)
    # Rounded up, so that a single document among millions still shows.
    heights = [-(-bar.count * len(_LEVELS) // most) for bar in bars]
    drawn = "".join(_LEVELS[height - 1] if height else " " for height in heights)
    return f"{bars[0].low:,} {drawn} {bars[-1].high:,}"


def _counts(summary: PlanSummary) -> Table:
    table = Table(title=summary.path, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    proof = "no plan has fewer" if summary.certified else f"{summary.gap:.3%} above the bound"
    limit = "" if summary.max_documents_per_row is None else f", at most {summary.max_documents_per_row:,} in a row"
    align = "" if summary.align == 1 else f", in multiples of {summary.align:,}"
    for name, value in (
        ("read from", summary.kind),
        ("documents (empty)", f"{summary.documents:,} ({summary.empty_documents:,})"),
        ("tokens", f"{summary.tokens:,}"),
        ("tokens of a document", sparkline(summary.histogram)),
        ("median, mean, longest", f"{summary.median:,.0f}, {summary.mean:,.1f}, {summary.longest:,}"),
        ("capacity", f"{summary.capacity:,}"),
        ("strategy, policy", f"{summary.strategy}, {summary.on_overflow}{limit}{align}"),
        ("utilization", f"{summary.utilization:.3%}"),
        ("rows (lower bound)", f"{summary.rows:,} ({summary.lower_bound:,})"),
        ("gap", proof),
        ("overflow", _overflow(summary)),
        ("documents per row (most)", f"{summary.documents_per_row:.1f} ({summary.most_documents_in_a_row:,})"),
        ("planned in", f"{summary.plan_seconds * 1000:,.1f} ms"),
    ):
        table.add_row(name, value)
    return table


def _overflow(summary: PlanSummary) -> str:
    """What documents longer than a row cost."""
    lost = f"{summary.lost_tokens:,} tokens lost"
    if summary.documents_dropped:
        return f"{summary.documents_dropped:,} documents dropped, {lost}"
    if summary.documents_truncated:
        return f"{summary.documents_truncated:,} documents truncated, {lost}"
    if summary.documents_cut:
        return f"{summary.documents_cut:,} documents cut into {summary.fragments:,} fragments, no token lost"
    return "nothing"


def _alternatives(summary: PlanSummary) -> Table:
    table = Table(title="the same documents in other ways", title_justify="left")
    table.add_column("way")
    for name in ("rows", "more rows", "utilization"):
        table.add_column(name, justify="right")
    table.add_row(f"this plan: {summary.strategy}", f"{summary.rows:,}", "", f"{summary.utilization:.3%}")
    for other in summary.alternatives:
        more = f"{other.rows / summary.rows - 1:+.2%}" if summary.rows else "-"
        table.add_row(other.name, f"{other.rows:,}", more, f"{other.utilization:.3%}")
    return table

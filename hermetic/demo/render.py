"""The demo's result for a terminal: the data, the leak, the seal, and one table of the four arms."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.data import render as render_summary
from hermetic.demo.run import DemoResult

_COLUMNS = {
    "utilization": ("used", "{:.1%}"),
    "steps": ("steps", "{}"),
    "tokens_per_second": ("tok/s", "{:,.0f}"),
    "train_loss": ("train", "{:.4f}"),
    "heldout_loss": ("held-out", "{:.4f}"),
    "logit_difference": ("logits", "{:.1e}"),
    "gradient_difference": ("gradient", "{:.1e}"),
}


def render(result: DemoResult) -> RenderableType:
    """Everything that the demo measured, in the order in which it is understood."""
    return Group(
        Text(_INTRODUCTION),
        render_summary(result.summary),
        Text("\n1. The same model, packed naively", style="bold"),
        result.naive,
        Text("\n2. The same model, sealed", style="bold"),
        result.sealed,
        Text("\n3. The same documents trained in four ways, from the same weights, in the same steps", style="bold"),
        _arms(result),
        Text(
            "used: real tokens per slot. train: loss of the last tenth of the steps; held-out: loss of other "
            "conversations, one at a time; both in nats per supervised token. logits, gradient: largest and relative "
            "difference to padded on the first batch, before training.",
            style="dim",
        ),
        Text(_conclusion(result), style="bold"),
    )


_INTRODUCTION = (
    "Packing lays several documents end to end in one row, so that no slot is spent on padding. A model that is not "
    "told where they start lets each document read the ones before it: a leak. Here conversations are packed, a leak "
    "is measured and sealed, and the same conversations are trained in four ways:\n"
    "  padded          one to a row, padded: what packing has to reproduce\n"
    "  naive           packed, and nobody told the model\n"
    "  positions_only  packed, positions restart, and still no mask\n"
    "  sealed          packed, each document on its own\n"
)


def _conclusion(result: DemoResult) -> str:
    sealed, padded, naive = (result.arms[name] for name in ("sealed", "padded", "naive"))
    return (
        f"Sealed packing trains what padding trains (held-out {sealed.heldout_loss:.4f} and {padded.heldout_loss:.4f}) "
        f"with {sealed.utilization:.0%} of the slots in use instead of {padded.utilization:.0%}; naive packing trains "
        f"something else (held-out {naive.heldout_loss:.4f})."
    )


def _arms(result: DemoResult) -> Table:
    table = Table(padding=(0, 1, 0, 0))  # whole in 80 columns
    table.add_column("arm", no_wrap=True)
    for title, _ in _COLUMNS.values():
        table.add_column(title, justify="right")
    for name, arm in result.arms.items():
        table.add_row(name, *(shape.format(getattr(arm, field)) for field, (_, shape) in _COLUMNS.items()))
    return table

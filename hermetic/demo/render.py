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
    )


def _arms(result: DemoResult) -> Table:
    table = Table()
    table.add_column("arm", no_wrap=True)
    for title, _ in _COLUMNS.values():
        table.add_column(title, justify="right")
    for name, arm in result.arms.items():
        table.add_row(name, *(shape.format(getattr(arm, field)) for field, (_, shape) in _COLUMNS.items()))
    return table

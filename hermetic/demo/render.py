"""The demo's result for a terminal: the data, the leak, the seal, and one table of the four arms."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.data import render as render_summary
from hermetic.demo.run import DemoResult

_COLUMNS = {
    "utilization": ("utilization", "{:.1%}"),
    "steps": ("steps", "{}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "train_loss": ("train loss", "{:.4f}"),
    "heldout_loss": ("held-out loss", "{:.4f}"),
    "logit_difference": ("logits vs padded", "{:.1e}"),
    "gradient_difference": ("gradient vs padded", "{:.1e}"),
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
            "held-out loss: nats per supervised token, one conversation at a time. Differences to padded: on the first "
            "batch, before training.",
            style="dim",
        ),
    )


def _arms(result: DemoResult) -> Table:
    table = Table()
    table.add_column("arm")
    for title, _ in _COLUMNS.values():
        table.add_column(title, justify="right")
    for name, arm in result.arms.items():
        table.add_row(name, *(shape.format(getattr(arm, field)) for field, (_, shape) in _COLUMNS.items()))
    return table

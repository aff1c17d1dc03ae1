"""Commands that train: demo, train."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermetic.cli.common import (
    AsJson,
    Backend,
    Capacity,
    OnOverflow,
    TrustRemoteCode,
    app,
    out_console,
    print_json,
    reports_errors,
    stages,
)

if TYPE_CHECKING:
    from hermetic.train import TrainMetrics


@app.command(epilog="Example: hermetic demo")
@reports_errors
def demo(*, as_json: AsJson = False) -> None:
    """Show a leak, seal it, and train in four ways, in three minutes."""
    from hermetic.demo.run import run_demo

    with stages(quiet=as_json) as on_stage:
        result = run_demo(on_stage=on_stage)
    if as_json:
        print_json(result.to_dict())
        return
    from hermetic.demo.render import render

    out_console.print(render(result))


@app.command(epilog="Example: hermetic train --model ./model --data chats.jsonl --capacity 4096 --out tuned")
@reports_errors
def train(
    *,
    model: Annotated[str, typer.Option(help="Folder or hub id of a causal language model with its tokenizer.")],
    data: Annotated[Path, typer.Option(help="A file that `hermetic pack` reads, or a folder that it made.")],
    capacity: Capacity,
    out: Annotated[Path, typer.Option(help="New folder for the model, its metrics and the leak report.")],
    pack: Annotated[bool, typer.Option(help="Pack; --no-pack trains the padded baseline.")] = True,
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank adapters instead of the weights.")] = False,
    epochs: Annotated[float, typer.Option(help="Passes over the rows.")] = 1.0,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many optimizer steps.")] = None,
    rows_per_batch: Annotated[int, typer.Option(help="Rows per micro-batch.")] = 1,
    accumulation_steps: Annotated[int, typer.Option(help="Micro-batches per optimizer step.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-5,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Trade time for memory.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Arithmetic in bfloat16, weights in float32.")] = False,
    seed: Annotated[int, typer.Option(help="Of the order of rows.")] = 0,
    on_overflow: OnOverflow = "error",
    backend: Backend = "sdpa",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on packed rows: sealed, probed, token-level loss.

    The probe runs on the first batch; on a leak no step is taken, and the exit code is 1.
    """
    from hermetic.train import TrainSettings, is_first_process
    from hermetic.train import train as run_train

    speaks = is_first_process()
    with stages(quiet=as_json or not speaks) as on_stage:
        metrics = run_train(
            model=model,
            data=data,
            out=out,
            capacity=capacity,
            settings=TrainSettings(
                epochs=epochs,
                max_steps=max_steps,
                rows_per_batch=rows_per_batch,
                accumulation_steps=accumulation_steps,
                learning_rate=learning_rate,
                lora=lora,
                gradient_checkpointing=gradient_checkpointing,
                bf16=bf16,
                seed=seed,
            ),
            pack=pack,
            backend=backend,
            on_overflow=on_overflow,
            trust_remote_code=trust_remote_code,
            on_stage=on_stage,
        )
    if speaks:
        _print_metrics(metrics, out, as_json=as_json)


def _print_metrics(metrics: "TrainMetrics", out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(metrics))
        return
    verdict = f", probe: {metrics.verdict}" if metrics.verdict else ""
    out_console.print(
        f"{metrics.steps} steps over {metrics.documents:,} documents in {metrics.rows:,} rows "
        f"(utilization {metrics.utilization:.1%}), {metrics.tokens_per_second:,.0f} tokens/s, "
        f"train loss {metrics.train_loss:.4f}{verdict}; written to {out}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )

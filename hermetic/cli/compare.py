"""The command that compares ways of packing: compare."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hermetic.cli.common import (
    AsJson,
    Backend,
    Html,
    OnOverflow,
    TrustRemoteCode,
    app,
    bar,
    out_console,
    print_json,
    reports_errors,
    require_page,
)


@app.command(epilog="Example: hermetic compare --data near-duplicates --seeds 5 --html comparison.html")
@reports_errors
def compare(
    *,
    data: Annotated[
        str,
        typer.Option(
            help="A file that `hermetic pack` reads, a folder that it made, or documents made for it: conversations, "
            "near-duplicates."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a causal language model with its tokenizer; made documents bring one."),
    ] = None,
    capacity: Annotated[int | None, typer.Option(help="Tokens per row; a packed folder has its own.")] = None,
    heldout: Annotated[
        Path | None, typer.Option(help="A file or folder to measure on; by default one row in ten of the data.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 5,
    arms: Annotated[
        str, typer.Option(help="Which arms, with commas between them.")
    ] = "padded,naive,positions_only,mask_only,sealed",
    steps: Annotated[int | None, typer.Option(help="Stop each run after so many optimizer steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.")] = None,
    rows_per_batch: Annotated[int | None, typer.Option(help="Rows per micro-batch.")] = None,
    accumulation_steps: Annotated[int | None, typer.Option(help="Micro-batches per optimizer step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Arithmetic in bfloat16, weights in float32.")] = False,
    on_overflow: OnOverflow = "error",
    backend: Backend = "sdpa",
    out: Annotated[Path | None, typer.Option(help="New folder for the result, its page and the rows.")] = None,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Train padded, naive and sealed arms, and say how they differ.

    The same documents in the same order and steps, over several seeds: losses with their spread, what part of the
    naive loss is the context of other documents, gradients, speed and memory. An arm that the model cannot run is
    shown with the reason, and is no failure: the exit code is 0, and 2 for wrong usage.
    """
    from hermetic.compare import render
    from hermetic.demo.presets import compare_data
    from hermetic.report import write_report

    require_page(html, plots=True)
    given: dict[str, Any] = {
        "epochs": epochs,
        "max_steps": steps,
        "rows_per_batch": rows_per_batch,
        "accumulation_steps": accumulation_steps,
        "learning_rate": learning_rate,
        "bf16": bf16 or None,
    }
    with bar(quiet=as_json) as on_step:
        result = compare_data(
            data,
            model=model,
            given=given,
            capacity=capacity,
            heldout=heldout,
            seeds=seeds,
            arms=[name.strip() for name in arms.split(",")],
            on_overflow=on_overflow,
            backend=backend,
            out=out,
            trust_remote_code=trust_remote_code,
            on_step=on_step,
        )
    # before the page: whatever becomes of that, what was measured has been said
    if as_json:
        print_json(result.to_dict())
    else:
        out_console.print(render(result))
    if html is not None:
        write_report(result, html)

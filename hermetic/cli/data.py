"""Commands that move documents: plan, pack, inspect, export."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hermetic.cli.common import (
    AsJson,
    Capacity,
    Html,
    OnOverflow,
    TrustRemoteCode,
    app,
    out_console,
    print_json,
    progress_on_stderr,
    reports_errors,
    require_page,
    stages,
)

if TYPE_CHECKING:
    from hermetic.data import PackedSummary, PackProgress
    from hermetic.data.encode import OnBadRecord, TrainOn


@app.command(epilog="Example: hermetic plan lengths.npy --capacity 4096 --compare")
@reports_errors
def plan(
    lengths: Annotated[
        Path, typer.Argument(help="A .npy, .parquet or .json file of lengths or counts, or a packed folder.")
    ],
    *,
    capacity: Annotated[int | None, typer.Option(help="Tokens per row; default: what the file states.")] = None,
    column: Annotated[str | None, typer.Option(help="Column of a Parquet file with lengths or tokens.")] = None,
    strategy: Annotated[
        str, typer.Option(help="best_fit_decreasing, optimal, next_fit, or concat_then_split (pretraining only).")
    ] = "best_fit_decreasing",
    on_overflow: OnOverflow = "error",
    max_documents_per_row: Annotated[int | None, typer.Option(help="Most documents or fragments in a row.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of rows and of who shares one.")] = None,
    align: Annotated[int, typer.Option(help="Each document takes a multiple of this many tokens of its row.")] = 1,
    time_limit: Annotated[float | None, typer.Option(help="Seconds that optimal may take; default: 60.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show what other ways would take.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the plan here, for hermetic.Plan.load.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan rows from lengths alone; say how near the optimum they are.

    The exit code is 1 when the plan loses tokens.
    """
    from hermetic.data import plan_lengths, render_plan

    with stages(quiet=as_json) as on_stage:
        summary = plan_lengths(
            lengths,
            capacity=capacity,
            column=column,
            strategy=strategy,
            on_overflow=on_overflow,
            max_documents_per_row=max_documents_per_row,
            seed=seed,
            align=align,
            time_limit=time_limit,
            compare=compare,
            save=save,
            on_stage=on_stage,
        )
    if as_json:
        print_json(dataclasses.asdict(summary))
    else:
        out_console.print(render_plan(summary))
    if summary.lost_tokens:
        raise typer.Exit(1)


@app.command(
    epilog="Example: hermetic pack chats.jsonl more.parquet@0.5 --tokenizer ./model --capacity 4096 --out packed"
)
@reports_errors
def pack(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files, globs, folders or hub:NAME of datasets, - for stdin; @0.5 behind one takes half of it, @2 all "
            "of it twice."
        ),
    ],
    *,
    tokenizer: Annotated[str, typer.Option(help="Folder or hub id of a tokenizer.")],
    capacity: Capacity,
    out: Annotated[Path, typer.Option(help="New folder for the packed rows.")],
    strategy: Annotated[
        str, typer.Option(help="best_fit_decreasing, optimal, next_fit, or concat_then_split (pretraining only).")
    ] = "best_fit_decreasing",
    on_overflow: OnOverflow = "error",
    train_on: Annotated[
        str, typer.Option(help="assistant: all that it says; last: its last turn; all: everything.")
    ] = "assistant",
    on_bad_record: Annotated[
        str, typer.Option(help="error ends the run at a malformed record, skip counts it.")
    ] = "error",
    seed: Annotated[int, typer.Option(help="Of the order of rows and of who shares one.")] = 0,
    file_format: Annotated[
        str, typer.Option("--format", help="arrow, mapped into memory, or parquet, smaller.")
    ] = "arrow",
    today: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="Date of chat templates that write one; default: the day of the start."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that tokenize; 0: one for each core.")] = 0,
    engine: Annotated[str, typer.Option(help="local, or ray: on a Ray cluster.")] = "local",
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Tokenize documents and pack them into rows that `datasets` opens.

    A run that died goes on where it was when the same command is given again. In conversations all but the assistant's
    tokens are masked. The exit code is 1 when tokens were lost or records skipped, as was asked for; the folder is
    written.
    """
    from hermetic.data import pack_sources

    require_page(html, plots=True)
    with _pack_bar(quiet=as_json) as on_progress:
        manifest = pack_sources(
            sources,
            out,
            tokenizer=tokenizer,
            capacity=capacity,
            strategy=strategy,
            on_overflow=on_overflow,
            train_on=cast("TrainOn", train_on),
            on_bad_record=cast("OnBadRecord", on_bad_record),
            seed=seed,
            file_format=file_format,
            workers=workers or len(os.sched_getaffinity(0)),
            engine=engine,
            today=None if today is None else today.date(),
            trust_remote_code=trust_remote_code,
            on_progress=on_progress,
        )
    if as_json:
        print_json(dataclasses.asdict(manifest))
    if html is not None or not as_json:
        source = _Tokenizer(name=tokenizer, trust_remote_code=trust_remote_code)
        _tell_of_pack(out, source, html, quiet=as_json)
    if manifest.tokens_lost or manifest.records_skipped:
        raise typer.Exit(1)


@contextmanager
def _pack_bar(*, quiet: bool) -> Iterator[Callable[["PackProgress"], None]]:
    """A bar on stderr with the stage, what it has done, its rate and the time left; none in a log file."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with progress_on_stderr(*columns, quiet=quiet) as progress:
        task = progress.add_task("starting", total=None, rate="")
        began: list[float] = []
        counted: list[int] = []

        def tell(now: "PackProgress") -> None:
            if now.stage != progress.tasks[0].description:
                progress.reset(task, description=now.stage, total=now.total or None)
                began[:], counted[:] = [time.monotonic()], [now.documents]
            rate = (now.documents - counted[0]) / max(time.monotonic() - began[0], 1e-9)
            shown = f"{now.documents:,} documents" + (f", {rate:,.0f}/s" if rate and now.stage == "tokenizing" else "")
            progress.update(task, completed=now.done, rate=shown)

        yield tell


@app.command(epilog="Example: hermetic inspect packed --show 3 --tokenizer ./model")
@reports_errors
def inspect(
    folder: Annotated[Path, typer.Argument(help="A folder that `hermetic pack` made.")],
    *,
    show: Annotated[int | None, typer.Option(help="Show so many rows, drawn with the seed, token by token.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Audit it and print every law with its result.")] = False,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Find near-duplicate documents and those that share a row.")
    ] = False,
    threshold: Annotated[float, typer.Option(help="Similarity from which on documents are near-duplicates.")] = 0.8,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer that made the rows; without, ids.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the rows to show and of the search for duplicates.")] = 0,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Verify a packed folder and show what it holds.

    The exit code is 1 when packing it lost tokens or skipped records, when --check finds damage and when --duplicates
    finds a pair.
    """
    if (show is not None) + check + duplicates > 1:
        raise typer.BadParameter("give one of --show, --check and --duplicates at a time")
    if html is not None and (show is not None or check or duplicates):
        raise typer.BadParameter(
            "--html writes the page of what a folder holds: give it without --show, --check or --duplicates"
        )
    source = _Tokenizer(name=tokenizer, trust_remote_code=trust_remote_code)
    if show is not None:
        _inspect_rows(folder, show, source, seed=seed, as_json=as_json)
    elif check:
        _inspect_laws(folder, source, as_json=as_json)
    elif duplicates:
        _inspect_duplicates(folder, threshold, source, seed=seed, as_json=as_json)
    else:
        _inspect_counts(folder, source, html, as_json=as_json)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Tokenizer:
    """How the command names one."""

    name: str | None
    trust_remote_code: bool


def _inspect_counts(folder: Path, tokenizer: _Tokenizer, html: Path | None, *, as_json: bool) -> None:
    require_page(html, plots=True)
    summary = _tell_of_pack(folder, tokenizer, html, quiet=as_json)
    if as_json:
        sys.stdout.write(summary.to_json())
    if summary.manifest.tokens_lost or summary.manifest.records_skipped:
        raise typer.Exit(1)


def _tell_of_pack(folder: Path, tokenizer: _Tokenizer, html: Path | None, *, quiet: bool) -> "PackedSummary":
    """On the terminal unless ``quiet``, and as a page where one was asked for; the folder is verified once."""
    from hermetic.data import load_tokenizer, open_packed, render
    from hermetic.data.summary import summarize
    from hermetic.report import pack_page, write_page

    packed = open_packed(folder)
    summary = summarize(packed)
    if not quiet:
        out_console.print(render(summary))
    if html is not None:
        code, name = tokenizer.trust_remote_code, tokenizer.name
        loaded = None if name is None else load_tokenizer(name, trust_remote_code=code)
        write_page(pack_page(packed, tokenizer=loaded), html)
    return summary


def _inspect_rows(folder: Path, rows: int, tokenizer: _Tokenizer, *, seed: int, as_json: bool) -> None:
    from hermetic.data import RenderedRows, show_packed

    code = tokenizer.trust_remote_code
    shown = show_packed(folder, rows=rows, tokenizer=tokenizer.name, seed=seed, trust_remote_code=code)
    if as_json:
        sys.stdout.write(shown.to_json())
    else:
        out_console.print(RenderedRows(shown=shown))


def _inspect_laws(folder: Path, tokenizer: _Tokenizer, *, as_json: bool) -> None:
    from hermetic.data import check_packed, render_check

    with stages(quiet=as_json) as on_stage:
        on_stage("verifying the folder")
        report = check_packed(folder, tokenizer=tokenizer.name, trust_remote_code=tokenizer.trust_remote_code)
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        out_console.print(render_check(report))
    if not report.sound:
        raise typer.Exit(1)


def _inspect_duplicates(folder: Path, threshold: float, tokenizer: _Tokenizer, *, seed: int, as_json: bool) -> None:
    from hermetic.data import find_duplicates, render_duplicates

    with stages(quiet=as_json) as on_stage:
        report = find_duplicates(
            folder,
            threshold=threshold,
            tokenizer=tokenizer.name,
            seed=seed,
            trust_remote_code=tokenizer.trust_remote_code,
            on_stage=on_stage,
        )
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        out_console.print(render_duplicates(report))
    if report.pairs:
        raise typer.Exit(1)


@app.command(epilog="Example: hermetic export packed --to megatron --out for-bridge")
@reports_errors
def export(
    folder: Annotated[Path, typer.Argument(help="A folder that `hermetic pack` made.")],
    *,
    to: Annotated[str, typer.Option(help="trl, parquet, megatron, mosaic or tokens.")],
    out: Annotated[Path, typer.Option(help="New folder for the rows in that form.")],
    as_json: AsJson = False,
) -> None:
    """Write packed rows in a form that another trainer reads.

    trl is a data set for SFTTrainer, megatron the packed Parquet of Megatron-Bridge and NeMo, mosaic shards of MosaicML
    Streaming, parquet every column, tokens plain NumPy arrays.
    """
    from hermetic.data import export_packed, render_export

    with stages(quiet=as_json) as on_stage:
        on_stage("verifying the folder")
        summary = export_packed(folder, out, to=to, on_rows=lambda rows: on_stage(f"{rows:,} rows written"))
    if as_json:
        sys.stdout.write(summary.to_json())
    else:
        out_console.print(render_export(summary, str(out)), soft_wrap=True)

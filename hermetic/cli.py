"""The command line: formatting only. What is shown is computed below.

Exit code 0 is sound, 1 a finding (a leak, a lost token), 2 wrong usage or bad input.
"""

import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hermetic.errors import HermeticError, LeakError

if TYPE_CHECKING:
    from hermetic.data import PackProgress
    from hermetic.data.encode import OnBadRecord, TrainOn
    from hermetic.train import TrainMetrics

app = typer.Typer(
    name="hermetic",
    help="Sequence packing that provably does not leak: pack, seal, prove, train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help shows every option whole in 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_out = Console()
_log = Console(stderr=True)

Capacity = Annotated[int, typer.Option(help="Tokens per row.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
OnOverflow = Annotated[str, typer.Option(help="What to do with longer documents: error, truncate, split or drop.")]
Backend = Annotated[str, typer.Option(help="Attention of the seal: reference, sdpa, flex, flash or torch_varlen.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Let model and tokenizer run code that they bring along.")]


def _reports_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn hermetic's errors into a message and an exit code."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except HermeticError as error:
            _say_error(f"{error.code}: {error}")
            raise typer.Exit(1 if isinstance(error, LeakError) else 2) from error
        except OSError as error:  # a full disk, a folder that may not be written
            _say_error(f"{type(error).__name__}: {error}")
            raise typer.Exit(2) from error

    return run


def _say_error(message: str) -> None:
    _log.print(message, style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _stages(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr with the stage that is running and the time since the start; none in a log file."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=_log, transient=True, disable=quiet or not _log.is_terminal) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda stage: progress.update(task, description=stage)


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr with what is next, how many are done of how many, and the time; none in a log file."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=_log, transient=True, disable=quiet or not _log.is_terminal) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


@app.command(epilog="Example: hermetic demo")
@_reports_errors
def demo(*, as_json: AsJson = False) -> None:
    """Show a leak, seal it, and train in four ways, in three minutes."""
    from hermetic.demo.run import run_demo

    with _stages(quiet=as_json) as on_stage:
        result = run_demo(on_stage=on_stage)
    if as_json:
        _print_json(result.to_dict())
        return
    from hermetic.demo.render import render

    _out.print(render(result))


@app.command(epilog="Example: hermetic plan lengths.npy --capacity 4096 --compare")
@_reports_errors
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
    """Plan rows from lengths alone and say how near the optimum they are.

    The exit code is 1 when the plan loses tokens.
    """
    from hermetic.data import plan_lengths, render_plan

    with _stages(quiet=as_json) as on_stage:
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
        _print_json(dataclasses.asdict(summary))
    else:
        _out.print(render_plan(summary))
    if summary.lost_tokens:
        raise typer.Exit(1)


@app.command(
    epilog="Example: hermetic pack chats.jsonl more.parquet@0.5 --tokenizer ./model --capacity 4096 --out packed"
)
@_reports_errors
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
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Tokenize documents and pack them into rows that `datasets` opens.

    A run that died goes on where it was when the same command is given again. In conversations all but the assistant's
    tokens are masked. The exit code is 1 when tokens were lost or records skipped, as was asked for; the folder is
    written.
    """
    from hermetic.data import inspect_packed, pack_sources, render

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
        _print_json(dataclasses.asdict(manifest))
    else:
        _out.print(render(inspect_packed(out)))
    if manifest.tokens_lost or manifest.records_skipped:
        raise typer.Exit(1)


@contextmanager
def _pack_bar(*, quiet: bool) -> Iterator[Callable[["PackProgress"], None]]:
    """A bar on stderr with the stage, what it has done, its rate and the time left; none in a log file."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_log, transient=True, disable=quiet or not _log.is_terminal) as progress:
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
@_reports_errors
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
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Verify a packed folder and show what it holds.

    The exit code is 1 when packing it lost tokens or skipped records, when --check finds damage and when --duplicates
    finds a pair.
    """
    if (show is not None) + check + duplicates > 1:
        raise typer.BadParameter("give one of --show, --check and --duplicates at a time")
    source = _Tokenizer(name=tokenizer, trust_remote_code=trust_remote_code)
    if show is not None:
        _inspect_rows(folder, show, source, seed=seed, as_json=as_json)
    elif check:
        _inspect_laws(folder, source, as_json=as_json)
    elif duplicates:
        _inspect_duplicates(folder, threshold, source, seed=seed, as_json=as_json)
    else:
        _inspect_counts(folder, as_json=as_json)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Tokenizer:
    """How the command names one."""

    name: str | None
    trust_remote_code: bool


def _inspect_counts(folder: Path, *, as_json: bool) -> None:
    from hermetic.data import inspect_packed, render

    summary = inspect_packed(folder)
    if as_json:
        sys.stdout.write(summary.to_json())
    else:
        _out.print(render(summary))
    if summary.manifest.tokens_lost or summary.manifest.records_skipped:
        raise typer.Exit(1)


def _inspect_rows(folder: Path, rows: int, tokenizer: _Tokenizer, *, seed: int, as_json: bool) -> None:
    from hermetic.data import RenderedRows, show_packed

    code = tokenizer.trust_remote_code
    shown = show_packed(folder, rows=rows, tokenizer=tokenizer.name, seed=seed, trust_remote_code=code)
    if as_json:
        sys.stdout.write(shown.to_json())
    else:
        _out.print(RenderedRows(shown=shown))


def _inspect_laws(folder: Path, tokenizer: _Tokenizer, *, as_json: bool) -> None:
    from hermetic.data import check_packed, render_check

    with _stages(quiet=as_json) as on_stage:
        on_stage("verifying the folder")
        report = check_packed(folder, tokenizer=tokenizer.name, trust_remote_code=tokenizer.trust_remote_code)
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        _out.print(render_check(report))
    if not report.sound:
        raise typer.Exit(1)


def _inspect_duplicates(folder: Path, threshold: float, tokenizer: _Tokenizer, *, seed: int, as_json: bool) -> None:
    from hermetic.data import find_duplicates, render_duplicates

    with _stages(quiet=as_json) as on_stage:
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
        _out.print(render_duplicates(report))
    if report.pairs:
        raise typer.Exit(1)


@app.command(epilog="Example: hermetic export packed --to megatron --out for-bridge")
@_reports_errors
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

    with _stages(quiet=as_json) as on_stage:
        on_stage("verifying the folder")
        summary = export_packed(folder, out, to=to, on_rows=lambda rows: on_stage(f"{rows:,} rows written"))
    if as_json:
        sys.stdout.write(summary.to_json())
    else:
        _out.print(render_export(summary, str(out)), soft_wrap=True)


@app.command(epilog="Example: hermetic probe ./model --seal")
@_reports_errors
def probe(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder or hub id of a causal language model, or a model type: llama is a tiny random one."
        ),
    ],
    *,
    seal: Annotated[bool, typer.Option("--seal", help="Seal the model first.")] = False,
    attention: Annotated[
        str | None, typer.Option(help="Attention implementation to load the model with, as transformers names it.")
    ] = None,
    backend: Backend = "sdpa",
    layers: Annotated[bool, typer.Option("--layers", help="Read every layer, also where nothing leaks.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report here as a page, token by token.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure whether packed documents reach each other in a model.

    The model is called as it should be: positions that restart, no mask, no cache. What that says about another call
    of a model that is not sealed is nothing. The exit code is 1 on a leak.
    """
    import hermetic
    from hermetic.atlas import as_tiny, tiny_by_name
    from hermetic.probe import with_details
    from hermetic.train import load_model

    with _stages(quiet=as_json) as on_stage:
        on_stage(f"loading {model}")
        tiny = tiny_by_name(model, attention=attention)
        network = tiny or load_model(model, trust_remote_code=trust_remote_code, attention=attention)
        on_stage("probing")
        report = hermetic.probe(hermetic.seal(network, backend=backend) if seal else network)
        report = with_details(report, network, per_layer=layers, per_token=html is not None)
        report = as_tiny(report, model) if tiny else report
    if html is not None:
        report.to_html(html)
    if as_json:
        _print_json(report.to_dict())
    else:
        _out.print(report)
        _out.print(_what_was_probed(sealed=seal), style="dim", highlight=False)
    if report.verdict != "sealed":
        raise typer.Exit(1)


def _what_was_probed(*, sealed: bool) -> str:
    if sealed:
        return "Probed after hermetic.seal: the model keeps documents apart however it is called."
    return (
        "Probed as it is, not sealed, and called with positions that restart, no mask and no cache. Called otherwise "
        "it may leak: try --seal, or probe your own call in Python."
    )


@app.command(
    epilog="Example: hermetic doctor -- python train.py",
    context_settings={"allow_interspersed_args": False},  # what follows the command is the command's
)
@_reports_errors
def doctor(
    command: Annotated[list[str], typer.Argument(help="Your training command with its arguments, after --.")],
    *,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the first training batch; default: no limit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine your own training command at its first batch.

    It runs until then: no file of yours is changed, and it is ended before any optimizer step. What it writes goes to
    stderr. The exit code is 1 on a finding, and 2 when it reached no training batch.
    """
    from hermetic.doctor import diagnose

    diagnosis = diagnose(command, timeout=timeout, on_output=_pass_on)
    if as_json:
        _print_json(diagnosis.to_dict())
    else:
        _out.print(diagnosis)
    if not diagnosis.sound:
        raise typer.Exit(1)


def _pass_on(output: bytes) -> None:
    sys.stderr.write(output.decode(errors="replace"))
    sys.stderr.flush()


@app.command(epilog="Example: hermetic train --model ./model --data chats.jsonl --capacity 4096 --out tuned")
@_reports_errors
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
    with _stages(quiet=as_json or not speaks) as on_stage:
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
        _print_json(dataclasses.asdict(metrics))
        return
    verdict = f", probe: {metrics.verdict}" if metrics.verdict else ""
    _out.print(
        f"{metrics.steps} steps over {metrics.documents:,} documents in {metrics.rows:,} rows "
        f"(utilization {metrics.utilization:.1%}), {metrics.tokens_per_second:,.0f} tokens/s, "
        f"train loss {metrics.train_loss:.4f}{verdict}; written to {out}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@app.command(epilog="Example: hermetic atlas llama gpt_oss qwen3_next")
@_reports_errors
def atlas(
    types: Annotated[
        list[str] | None, typer.Argument(help="Model types, as transformers names them; by default all.")
    ] = None,
    *,
    sealed: Annotated[bool, typer.Option(help="Seal each model, too, and measure it.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as a page of Markdown here, too.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Keep finished types in this file and go on where it ends.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what packing does to every type of causal language model.

    Tiny models with random weights, each as it is shipped, called in four ways, and sealed. All types take some
    minutes. A leak of a model as shipped is what is looked for and no failure: the exit code is 1 when a sealed model
    fails its probe.
    """
    from hermetic.atlas import render, require_place, survey, write_page

    if markdown is not None:
        require_place(markdown)
    with _bar(quiet=as_json) as on_type:
        result = survey(types, sealed=sealed, state=state, on_type=on_type)
    if markdown is not None:
        write_page(result, markdown)
    if as_json:
        _print_json(result.to_dict())
    else:
        _out.print(render(result))
    if result.unsound:
        raise typer.Exit(1)


def main() -> None:
    """The console script ``hermetic``."""
    app()

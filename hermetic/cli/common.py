"""What the commands share: the options that several have, errors as exit codes, progress, and JSON."""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from hermetic.errors import HermeticError, LeakError

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

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

out_console = Console()
log_console = Console(stderr=True)

Capacity = Annotated[int, typer.Option(help="Tokens per row.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
OnOverflow = Annotated[str, typer.Option(help="What to do with longer documents: error, truncate, split or drop.")]
Html = Annotated[Path | None, typer.Option(help="Write the report here, too: one HTML file that needs nothing else.")]
Backend = Annotated[str, typer.Option(help="Attention of the seal: reference, sdpa, flex, flash or torch_varlen.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Let model and tokenizer run code that they bring along.")]


def reports_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn hermetic's errors into a message and an exit code."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except HermeticError as error:
            say_error(f"{error.code}: {error}")
            raise typer.Exit(1 if isinstance(error, LeakError) else 2) from error
        except OSError as error:  # a full disk, a folder that may not be written
            say_error(f"{type(error).__name__}: {error}")
            raise typer.Exit(2) from error

    return run


def require_page(html: Path | None, *, plots: bool = False) -> None:
    """Refuse, before minutes are spent, a page that cannot be written, or whose plots cannot be drawn.

    Raises:
        ReportError: there is no such folder, or ``html`` is one.
        MissingDependencyError: the page has plots, and matplotlib is not installed.
    """
    if html is None:
        return
    from hermetic.markup import require_plots
    from hermetic.report import require_place

    require_place(html)
    if plots:
        require_plots()


def say_error(message: str) -> None:
    """In red on stderr; what would steer the terminal, as the name of a file may, is shown as an escape."""
    shown = "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in message)
    log_console.print(shown, style="red", markup=False, highlight=False, soft_wrap=True)


def progress_on_stderr(*columns: "ProgressColumn", quiet: bool) -> "Progress":
    """Columns that vanish when it is done; nothing in a log file."""
    from rich.progress import Progress

    return Progress(*columns, console=log_console, transient=True, disable=quiet or not log_console.is_terminal)


@contextmanager
def stages(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr with the stage that is running and the time since the start; none in a log file."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=log_console, transient=True, disable=quiet or not log_console.is_terminal
    ) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda stage: progress.update(task, description=stage)


@contextmanager
def bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr with what is next, how many are done of how many, and the time; none in a log file."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(
        *columns, console=log_console, transient=True, disable=quiet or not log_console.is_terminal
    ) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of stdout."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")

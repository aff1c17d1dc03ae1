"""The tasks of a pack on a Ray cluster, through Ray Data.

Guarantee: the same files as any other engine writes, for the tasks are the same; an error that a task raises is raised
here with its own type. Price: every machine has to see the folder of the run and the sources under the same paths, and
have hermetic installed. Ray is started on this machine unless a cluster is running (``RAY_ADDRESS`` says where).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hermetic.data.dependencies import import_optional
from hermetic.errors import HermeticError

__all__ = ["in_cluster"]

T = TypeVar("T")
R = TypeVar("R")


def in_cluster(function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    """Run each task as a task of Ray; results come in the order of the tasks, each as soon as those before it are in.

    Raises:
        MissingDependencyError: If Ray is not installed.
    """
    data = import_optional("ray.data", install="hermetic[ray]")
    data.DataContext.get_current().enable_progress_bars = False
    items = [{"number": number, "task": task} for number, task in enumerate(tasks)]
    rows = iter(data.from_items(items, override_num_blocks=len(items)).map(_ran, fn_args=(function,)).iter_rows())
    waiting: dict[int, Any] = {}
    for wanted in range(len(tasks)):
        while wanted not in waiting:
            row = next(rows)
            waiting[row["number"]] = row["outcome"]
        outcome = waiting.pop(wanted)
        if isinstance(outcome, (HermeticError, OSError)):
            raise outcome
        yield outcome


def _ran(row: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Errors of a task travel as what they are: Ray would wrap them, and try again what cannot succeed."""
    try:
        outcome = function(row["task"])
    except (HermeticError, OSError) as error:
        outcome = error
    return {"number": row["number"], "outcome": outcome}

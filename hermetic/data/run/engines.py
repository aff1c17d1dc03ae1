"""Who runs the tasks of a pack.

A task is a picklable record, and what runs it a function of a module: they may go to another process or machine. Every
task writes its own file and depends on nothing else, so engines differ in speed alone.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Final, TypeVar

from hermetic.errors import PackRunError

__all__ = ["in_processes", "in_threads", "in_turn"]

T = TypeVar("T")
R = TypeVar("R")

_AHEAD: Final = 2
"""Tasks for each worker that are handed out before the first result is taken: enough to keep it busy."""


def in_turn(function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    """Run the tasks in this process, one after the other."""
    return map(function, tasks)


def in_processes(function: Callable[[T], R], tasks: Sequence[T], *, workers: int) -> Iterator[R]:
    """Run the tasks in fresh processes; results come in the order of the tasks.

    The processes end with this one, however it ends. Each tokenizes in one thread, for they share the cores.

    Raises:
        PackRunError: If one of them is killed, or cannot start.
    """
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),))
    try:
        yield from _in_order(pool, function, tasks, workers)
    except BrokenProcessPool as error:
        raise PackRunError(
            f"one of {workers} worker processes was killed, as happens when memory is short, or could not start, as "
            'when a script does not begin its work under if __name__ == "__main__":; expected all of them to live. '
            "What is finished is kept: run again, perhaps with fewer workers"
        ) from error


def in_threads(function: Callable[[T], R], tasks: Sequence[T], *, workers: int) -> Iterator[R]:
    """Run the tasks in threads; results come in the order of the tasks."""
    return _in_order(ThreadPoolExecutor(workers), function, tasks, workers)


def _in_order(pool: Executor, function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """A window of tasks is out at any time; the first error ends them all."""
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) > _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """Ctrl-C reaches every process of a terminal; only the one that runs the pack answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A process whose parent was killed would wait for tasks for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)

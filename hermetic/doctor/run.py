"""Run a training command until its first batch has been examined, and end it there.

Algorithm: the command starts with one folder in front of its ``PYTHONPATH`` (see ``hook/sitecustomize.py``) and with
the name of a private folder in its environment, in which the process that meets the first training batch leaves its
record. The parent waits for the record, or for the end of the command, and then kills every process that carries that
name in its environment: launchers start workers in sessions of their own, which a process group does not reach.
Guarantee: no file of the user is changed, no optimizer step of torch taken; nothing of the command runs after.
Price: what the command takes to reach its first batch, and a probe.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hermetic.doctor.diagnosis import Diagnosis
from hermetic.doctor.watch import FOLDER, PARENT, RECORD
from hermetic.errors import DoctorError

_HOOK = Path(__file__).parent / "hook"

_TAIL = 4000
"""Bytes of the command's last output that a message shows."""


def diagnose(
    command: Sequence[str], *, timeout: float | None = None, on_output: Callable[[bytes], object] | None = None
) -> Diagnosis:
    """Run ``command`` until its first training batch, and say what packing does there.

    Args:
        command: a program and its arguments, as in a shell; the training script is not changed.
        timeout: seconds until the command is ended even without a batch; by default there is no limit.
        on_output: gets what the command writes to stdout and stderr, in pieces; by default it is dropped.

    Returns:
        What was found. The command has been ended, without an optimizer step.

    Raises:
        DoctorError: the command is not found, ignores its environment, ended or took longer than ``timeout``
            before any training batch, or its batch could not be examined.

    Example:
        >>> diagnose(["python", "train.py"]).sound  # doctest: +SKIP
        True
    """
    program = _program(command)
    with tempfile.TemporaryDirectory(prefix="hermetic-doctor-") as name:
        folder = Path(name)
        with _started(program, command, folder) as process:
            output = _Output(process.stdout, on_output)
            record = _awaited(process, folder, timeout)
            code = process.poll()
        output.end()
        if record is None:
            trains = any(folder.glob("armed-*"))
            last = f"\n\nThe last that it wrote:\n{output.tail}" if output.tail else ""
            raise DoctorError(_why_nothing(code, timeout, imports_torch=trains) + last)
    if "error" in record:
        raise DoctorError(record["error"])
    return Diagnosis.from_dict(record)


def _program(command: Sequence[str]) -> str:
    if not command:
        raise DoctorError("no command was given; expected one, as in hermetic doctor -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        raise DoctorError(f"command {command[0]!r} is not found; expected a program on PATH or the path of one")
    deaf = [flag for flag in _flags(command) if set(flag[1:]) & set("EIS")]
    if deaf:
        raise DoctorError(
            f"{command[0]} {deaf[0]} ignores PYTHONPATH or sitecustomize, so its training could not be stopped; "
            "expected a Python that reads its environment. Leave the flag out"
        )
    return program


def _flags(command: Sequence[str]) -> Iterator[str]:
    """The flags of an interpreter itself, before the script, -m or -c."""
    if not Path(command[0]).name.startswith("python"):
        return
    for flag in command[1:]:
        if not flag.startswith("-") or flag.startswith("--") or flag[1:2] in {"m", "c", ""}:
            return
        yield flag


@contextmanager
def _started(program: str, command: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The command, with everything that it started ended at the end, also when this process is interrupted."""
    with _ended_by_signals():
        process = subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            command,
            executable=program,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process, folder)


def _environment(folder: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(_HOOK), *([path] if path else [])])
    return os.environ | {"PYTHONPATH": paths, FOLDER: str(folder), PARENT: str(os.getpid())}


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the block as an interrupt does, so that the command does not train on alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Output:
    """Passes on what the command writes, and keeps the end of it."""

    def __init__(self, stream: IO[bytes] | None, on_output: Callable[[bytes], object] | None) -> None:
        assert stream is not None  # noqa: S101 - the command was started with a pipe
        self._stream = stream
        self._on_output = on_output
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while piece := os.read(self._stream.fileno(), 65536):
                self._kept = (self._kept + piece)[-_TAIL:]
                if self._on_output is not None:
                    self._on_output(piece)

    def end(self) -> None:
        """Read to the end, which is there once no process of the command is left."""
        self._thread.join(timeout=5)

    @property
    def tail(self) -> str:
        return self._kept.decode(errors="replace").strip()


def _awaited(process: "subprocess.Popen[bytes]", folder: Path, timeout: float | None) -> dict[str, Any] | None:
    """The record, or ``None`` when the command ended or the time is over without one."""
    deadline = None if timeout is None else time.monotonic() + timeout
    record = folder / RECORD
    while not record.exists():
        over = deadline is not None and time.monotonic() > deadline
        if over or process.poll() is not None:
            break
        time.sleep(0.02)
    if not record.exists():
        return None
    found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return found


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kill all processes of the command at once: none gets to run a handler, an exit function or a next line."""
    while True:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        others = _processes_of(folder)
        for other in others:
            _kill(other)
        if process.poll() is not None and not others:
            return
        time.sleep(0.01)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _processes_of(folder: Path) -> list[int]:
    """The living processes that have inherited the folder's name; none where the system has no /proc."""
    mark = f"{FOLDER}={folder}".encode()
    environments = Path("/proc").glob("[0-9]*/environ")
    return [int(one.parent.name) for one in environments if mark in _read(one).split(b"\0")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # another user's process, or one that is gone
        return b""


def _why_nothing(code: int | None, timeout: float | None, *, imports_torch: bool) -> str:
    if code is None:
        return (
            f"the command reached no training batch in {timeout:g} seconds and was ended; expected one before that. "
            "Give it a longer --timeout, or less data to prepare"
        )
    what = f"the command ended with exit code {code} before any training batch"
    if code:
        return f"{what}; expected it to train. Make it run by itself first"
    if not imports_torch:
        return (
            f"{what}, and no Python of it imported torch; expected a command that trains. Give the one that does, "
            "rather than one that submits it elsewhere"
        )
    return (
        f"{what}; expected a torch module with an embedding to be called with token ids while gradients are on. "
        "Is there anything to train on, or does it resume a run that is complete?"
    )

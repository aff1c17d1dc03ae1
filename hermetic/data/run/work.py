"""The folder in which a run works: a hidden sibling of the target.

Algorithm: ``.NAME.packing`` beside the target holds what the run has finished: spooled sources, tokenized parts, rows.
A lock on a file in it is held as long as the process lives, and the system takes it back however the process ends.
Guarantee: one run at a time for a target; whoever looks at the target sees nothing or the whole. What a killed run
finished is still there for the next one. Price: a rename within one file system. Needs POSIX locks (``fcntl``).
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO

from hermetic.data.folders import check_free, followed
from hermetic.data.run.receipts import read_receipt, write_receipt
from hermetic.errors import PackRunError
from hermetic.files import remove_unfinished

__all__ = ["WorkFolder", "working"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFolder:
    """The hidden folder of a run and the places in it."""

    path: Path
    target: Path
    """Where the packed folder appears at the end."""

    @property
    def spool(self) -> Path:
        """Plain copies of sources that cannot be read in parts."""
        return self.path / "spool"

    @property
    def parts(self) -> Path:
        """Tokenized parts and their receipts."""
        return self.path / "parts"

    @property
    def rows(self) -> Path:
        """What becomes the target."""
        return self.path / "rows"

    @property
    def shards(self) -> Path:
        """Receipts of the files of rows."""
        return self.path / "shards"

    @property
    def _finished(self) -> Path:
        return self.path / "finished.json"

    def prepare(self) -> None:
        """Make the places; what is finished in them stays.

        Raises:
            PackedDataError: the target holds something already.
        """
        check_free(self.target)
        self._finished.unlink(missing_ok=True)
        for folder in (self.spool, self.parts, self.rows, self.shards):
            folder.mkdir(exist_ok=True)
            remove_unfinished(folder)

    def day(self, wanted: date | None) -> date:
        """The date of this run: ``wanted``, or that on which it first began, however often it died since."""
        if wanted is not None:
            return wanted
        noted = read_receipt(self.path / "day.json")
        if noted is None:
            noted = {"day": date.today().isoformat()}  # noqa: DTZ011 - as transformers' templates read the clock
            write_receipt(self.path / "day.json", noted)
        return date.fromisoformat(noted["day"])

    def publish(self, run: str) -> None:
        """Let the rows appear as the target, whole, and remove the rest."""
        write_receipt(self._finished, {"run": run})
        sync_folder(self.rows)
        self.rows.replace(self.target)
        sync_folder(self.target.parent)
        self.discard()

    def published(self) -> str | None:
        """The run that died between publishing its rows and removing this folder; None if there was none."""
        finished = None if self.rows.exists() else read_receipt(self._finished)
        return None if finished is None else finished["run"]

    def discard(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path)


@contextmanager
def working(target: Path) -> Iterator[WorkFolder]:
    """Lock the work folder of ``target`` for the duration, making it if there is none.

    It is kept when the block ends with more than one finished part in it, and goes otherwise.

    Raises:
        PackedDataError: the target holds something, and not from a run that died before it had tidied up.
        PackRunError: another run works on the same target, no folder can be made beside it, or the disk is full.
    """
    target = followed(target)
    work = WorkFolder(path=target.with_name(f".{target.name}.packing"), target=target)
    if not work.path.is_dir():
        check_free(target)  # before anything is made
    with _space_in(work), _locked(work):
        try:
            if work.published() is None:
                work.prepare()
            yield work
        finally:
            if work.path.exists() and len(list(work.parts.glob("*.json"))) < 2:
                work.discard()


@contextmanager
def _space_in(work: WorkFolder) -> Iterator[None]:
    """Say what a full disk means for the run."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        kept = f", which goes on from what is kept in {work.path}" if work.path.exists() else "; nothing was finished"
        raise PackRunError(
            f"no space is left to pack into {work.target} ({error}). Make room and run the same command again{kept}"
        ) from error


@contextmanager
def _locked(work: WorkFolder) -> Iterator[None]:
    lock = _lock_file(work)
    try:
        yield
    finally:
        lock.close()


def _lock_file(work: WorkFolder) -> IO[str]:
    """The locked file, in the folder that is there now: another run may have removed the one that was there before."""
    while True:
        _make(work)
        path = work.path / "lock"
        try:
            lock = path.open("a+", encoding="utf-8")
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise PackRunError(
                f"another run (process {holder}) is packing into {work.target}; expected one at a time. Wait for it, "
                "or choose another folder"
            ) from error
        if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            return lock
        lock.close()


def _make(work: WorkFolder) -> None:
    try:
        work.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise PackRunError(
            f"the folder {work.path}, in which a run works, cannot be made: {error.strerror}; expected a place beside "
            f"{work.target} that may be written to; choose another"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Documents in, a folder of packed rows out: killed at any moment, it goes on where it was.

Algorithm: the sources are cut into parts; each part is read, checked, tokenized and labelled by a task of its own,
which writes one file and a receipt (``hermetic.data.run``). From the lengths of all parts the rows are planned at once.
Then each file of rows is gathered from the parts by a task of its own, and one rename lets the folder appear.
Guarantee: the folder is complete, with a manifest that adds up, or it does not exist; every document is in it as often
as its source's weight says, and what was skipped, cut or dropped is counted, listed in ``losses.jsonl``, and was asked
for. The bytes depend on the sources, the tokenizer and the options alone: not on the workers, the engine, or how often
the run died. Price: memory for the lengths, about 40 bytes a document while they are planned, and for one part and one
file of rows per worker; on disk, while it runs, 8 bytes a token and 13 a document beside the rows.

The folder opens with ``datasets.load_from_disk`` and has, for each row,

    input_ids        list<int32>   the tokens of its documents, end to end
    labels           list<int32>   unshifted, -100 on each document's first token and on unsupervised tokens
    seq_lengths      list<int32>   tokens of each document, as TRL's packed format has it
    document_ids     list<int64>   0-based document of all that were read that each is, or is cut from
    source_ids       list<int32>   which of the manifest's source files it is from
    record_numbers   list<int64>   1-based line or row of that file
    roles            list<int8>    only with preference pairs: 1 chosen, 2 rejected, 0 neither

For documents ``[5, 6, 7]`` and ``[8, 9]`` in one row: input_ids ``[5, 6, 7, 8, 9]``, labels ``[-100, 6, 7,
-100, 9]``, seq_lengths ``[3, 2]``, document_ids ``[0, 1]``, source_ids ``[0, 0]``, record_numbers ``[1, 2]``.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from hermetic.data.encode import OnBadRecord, TrainOn
from hermetic.data.manifest import PackManifest
from hermetic.data.run import engines
from hermetic.data.run.account import Outcome, make_manifest
from hermetic.data.run.corpus import Corpus, Draw, draw_units, read_corpus
from hermetic.data.run.options import PackOptions, TokenizerRef
from hermetic.data.run.part_files import PartReceipt
from hermetic.data.run.planning import plan_units
from hermetic.data.run.shards import ShardReceipt, ShardTask, finished_shard, shard_task, shard_tasks
from hermetic.data.run.tokenize import EncodeTask, encode_task, part_key, reusable
from hermetic.data.run.work import WorkFolder, working
from hermetic.data.sources import SourceFile, SourceSpec, find_files, parse_source, split_into_parts
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint, writes_the_date
from hermetic.errors import PackRunError
from hermetic.plan import Plan, plan_rows

__all__ = ["PackProgress", "pack_sources"]

_PART_BYTES: Final = 1 << 24
_MOST_PARTS: Final = 4096
_SHARD_TOKENS: Final = 1 << 23
_CHOICES: Final = {
    "train_on": ("assistant", "all", "last"),
    "on_bad_record": ("error", "skip"),
    "file_format": ("arrow", "parquet"),
    "engine": ("local", "ray"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackProgress:
    """How far a run is."""

    stage: str
    """``"reading sources"``, ``"tokenizing"``, ``"planning"`` or ``"writing rows"``."""

    done: int = 0
    total: int = 0
    """Bytes or rows of the source while it is tokenized, and rows while they are written; 0 where nobody knows."""

    documents: int = 0
    """Tokenized so far."""

    tokens: int = 0


def pack_sources(
    sources: str | os.PathLike[str] | SourceSpec | Sequence[str | os.PathLike[str] | SourceSpec],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    capacity: int,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    seed: int | None = 0,
    train_on: TrainOn = "assistant",
    on_bad_record: OnBadRecord = "error",
    file_format: str = "arrow",
    workers: int = 1,
    engine: str = "local",
    part_bytes: int | None = None,
    shard_tokens: int = _SHARD_TOKENS,
    today: date | None = None,
    trust_remote_code: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackManifest:
    """Pack the documents of one or more sources into a new folder of rows.

    Args:
        sources: what ``hermetic.data.parse_source`` reads: files, globs, folders and hub ids of ``datasets``, ``-`` for
            stdin, each with ``@WEIGHT`` behind it if its documents are to be taken more or less often than once.
        out: the folder to make; it may exist if it is empty.
        tokenizer: a folder with a Hugging Face tokenizer, or a model id.
        capacity: tokens per row.
        strategy: as in ``hermetic.plan_rows``.
        on_overflow: as in ``hermetic.plan_rows``; preference pairs are never cut.
        seed: as in ``hermetic.plan_rows``, and of what a fractional weight takes; None keeps the natural order.
        train_on: ``"assistant"`` supervises all that the assistant says, ``"last"`` its last turn, ``"all"`` all of it.
        on_bad_record: ``"error"`` ends the run at a malformed record, ``"skip"`` leaves it out and counts it.
        file_format: ``"arrow"``, which is mapped into memory, or ``"parquet"``, which is smaller.
        workers: processes that tokenize, and threads that write rows. Above 1 a script has to start under
            ``if __name__ == "__main__":``, for each process imports it.
        engine: ``"local"``, or ``"ray"``: Ray Data, over a file system that all its machines share.
        part_bytes: bytes of source that one task reads; by default 16 MiB, and more of sources above 64 GiB.
        shard_tokens: slots of one file of rows.
        today: the date of chat templates that write one; by default the day on which the run first began.
        trust_remote_code: whether the tokenizer may bring code of its own and run it.
        on_progress: called as the run goes on.

    Returns:
        What was written, as it stands in the folder's ``manifest.json``.

    Raises:
        SourceError: If a source is missing, empty or malformed, or changes while it is read.
        RecordError: If a record is malformed, and these are not to be skipped.
        TemplateError: If a conversation cannot be rendered.
        DocumentTooLongError: If a document does not fit and ``on_overflow`` is ``"error"``.
        PlanError: If capacity, strategy, policy or seed are not valid.
        PackedDataError: If ``out`` holds something already.
        PackRunError: If an option is not valid, another run packs into ``out``, or the disk is full.
        DataError: If the tokenizer cannot be loaded, or nothing is left to pack.
    """
    for name, value in (("train_on", train_on), ("on_bad_record", on_bad_record), ("file_format", file_format)):
        _check_choice(name, value)
    _check_choice("engine", engine)
    for name, number in (("workers", workers), ("part_bytes", part_bytes), ("shard_tokens", shard_tokens)):
        if number is not None and (type(number) is not int or number < 1):
            raise PackRunError(f"{name} is {number!r}; expected a whole number of at least 1")
    # A wrong capacity or policy is better found now than after the whole source has been tokenized.
    plan_rows([1], capacity, strategy=strategy, on_overflow=on_overflow, seed=seed)
    specs = _specs(sources)
    options = PackOptions(
        capacity=capacity,
        strategy=strategy,
        on_overflow=on_overflow,
        seed=seed,
        train_on=train_on,
        on_bad_record=on_bad_record,
        file_format=file_format,
        weights=tuple(spec.weight for spec in specs),
        shard_tokens=shard_tokens,
    )
    run = _Run(options, workers=workers, engine=engine, announce=on_progress or (lambda _: None))
    loaded = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    target = Path(out)
    with working(target) as work:
        encoder = TokenizerRef(
            name=_name_of(tokenizer),
            trust_remote_code=trust_remote_code,
            fingerprint=tokenizer_fingerprint(loaded),
            today=work.day(today) if writes_the_date(loaded) else None,
        )
        run.announce(PackProgress(stage="reading sources"))
        files = find_files(specs, spool=work.spool)
        tasks = _encode_tasks(files, work, options, encoder, part_bytes=part_bytes)
        identity = _identity(options, tasks, encoder)
        if work.published() == identity:
            work.discard()
            return PackManifest.load(target)
        work.prepare()
        return run.finish(work, files, tasks, identity)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of which all is decided."""

    options: PackOptions
    workers: int
    engine: str
    announce: Callable[[PackProgress], None]

    def finish(self, work: WorkFolder, files: list[SourceFile], tasks: list[EncodeTask], identity: str) -> PackManifest:
        """Tokenize, plan, write, and let the folder appear."""
        receipts = self._tokenized(tasks)
        file_of_part = [task.part.file for task in tasks]
        corpus = read_corpus(work.parts, receipts, file_of_part)
        self.announce(PackProgress(stage="planning", documents=corpus.num_documents, tokens=int(corpus.offsets[-1])))
        options = self.options
        draw = draw_units(corpus, [file.source for file in files], options.weights, seed=options.seed)
        plan = plan_units(corpus, draw, files, options)
        shards = self._written(work, corpus, draw, plan, identity)
        outcome = Outcome(
            corpus=corpus,
            draw=draw,
            plan=plan,
            files=tuple(files),
            options=options,
            shards=tuple(shards),
            tokenizer=tasks[0].tokenizer,
            run=identity,
        )
        manifest = make_manifest(work.rows, outcome)
        work.publish(identity)
        return manifest

    def _tokenized(self, tasks: list[EncodeTask]) -> list[PartReceipt]:
        total = sum(task.part.stop - task.part.start for task in tasks)
        finished = {index: receipt for index, task in enumerate(tasks) if (receipt := reusable(task)) is not None}
        open_tasks = [task for index, task in enumerate(tasks) if index not in finished]
        receipts = list(finished.items())
        done = total - sum(task.part.stop - task.part.start for task in open_tasks)
        documents, tokens = (sum(getattr(r, name) for _, r in receipts) for name in ("documents", "tokens"))
        self._tell("tokenizing", done, total, documents, tokens)
        for task, receipt in zip(open_tasks, self._encode(open_tasks), strict=True):
            receipts.append((task.part.index, receipt))
            done += task.part.stop - task.part.start
            documents, tokens = documents + receipt.documents, tokens + receipt.tokens
            self._tell("tokenizing", done, total, documents, tokens)
        return [receipt for _, receipt in sorted(receipts, key=lambda pair: pair[0])]

    def _encode(self, tasks: list[EncodeTask]) -> Iterator[PartReceipt]:
        if self.engine == "ray" and tasks:
            from hermetic.data.run.ray_engine import in_cluster

            return in_cluster(encode_task, tasks)
        if self.workers == 1 or len(tasks) < 2:
            return engines.in_turn(encode_task, tasks)
        return engines.in_processes(encode_task, tasks, workers=min(self.workers, len(tasks)))

    def _written(self, work: WorkFolder, corpus: Corpus, draw: Draw, plan: Plan, identity: str) -> list[ShardReceipt]:
        tasks = shard_tasks(
            corpus,
            draw,
            plan,
            run=identity,
            work=work,
            shard_tokens=self.options.shard_tokens,
            file_format=self.options.file_format,
        )
        finished = {task.name: receipt for task in tasks if (receipt := finished_shard(task)) is not None}
        _remove_all_but(work.rows, set(finished))
        open_tasks = [task for task in tasks if task.name not in finished]
        rows = sum(receipt.rows for receipt in finished.values())
        self._tell("writing rows", rows, plan.num_rows, corpus.num_documents, int(corpus.offsets[-1]))
        for receipt in self._gather(open_tasks):
            finished[receipt.name] = receipt
            rows += receipt.rows
            self._tell("writing rows", rows, plan.num_rows, corpus.num_documents, int(corpus.offsets[-1]))
        return [finished[task.name] for task in tasks]

    def _gather(self, tasks: list[ShardTask]) -> Iterator[ShardReceipt]:
        if self.engine == "ray" and tasks:
            from hermetic.data.run.ray_engine import in_cluster

            return in_cluster(shard_task, tasks)
        return engines.in_threads(shard_task, tasks, workers=self.workers)

    def _tell(self, stage: str, done: int, total: int, documents: int, tokens: int) -> None:
        self.announce(PackProgress(stage=stage, done=done, total=total, documents=documents, tokens=tokens))


def _check_choice(name: str, value: str) -> None:
    if value not in _CHOICES[name]:
        raise PackRunError(f"{name} is {value!r}; expected one of {', '.join(_CHOICES[name])}")


def _specs(sources: Any) -> list[SourceSpec]:
    listed = sources if isinstance(sources, (list, tuple)) else [sources]
    if not listed:
        raise PackRunError("no source is given; expected at least one file, glob, folder, hub id, or - for stdin")
    return [one if isinstance(one, SourceSpec) else parse_source(os.fspath(one)) for one in listed]


def _name_of(tokenizer: str | os.PathLike[str]) -> str:
    """A folder as an absolute path, for a task may run elsewhere; a model id as it is."""
    name = os.fspath(tokenizer)
    return str(Path(name).resolve()) if Path(name).exists() else name


def _encode_tasks(
    files: list[SourceFile], work: WorkFolder, options: PackOptions, tokenizer: TokenizerRef, *, part_bytes: int | None
) -> list[EncodeTask]:
    size = part_bytes or max(_PART_BYTES, sum(file.size for file in files) // _MOST_PARTS)
    return [
        EncodeTask(
            file=files[part.file],
            part=part,
            tokenizer=tokenizer,
            train_on=options.train_on,
            on_bad_record=options.on_bad_record,
            folder=str(work.parts.resolve()),
            key=part_key(files[part.file], part, tokenizer=tokenizer, train_on=options.train_on),
        )
        for part in split_into_parts(files, part_bytes=size)
    ]


def _identity(options: PackOptions, tasks: list[EncodeTask], tokenizer: TokenizerRef) -> str:
    """The run, by the hash of all that decides its bytes."""
    decided = {
        "options": {name: getattr(options, name) for name in options.__slots__},
        "parts": [task.key for task in tasks],
        "sources": [task.file.source for task in tasks],
        "tokenizer": [tokenizer.fingerprint, str(tokenizer.today)],
    }
    return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


def _remove_all_but(folder: Path, kept: set[str]) -> None:
    """What another attempt with other options left behind is no part of these rows."""
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()

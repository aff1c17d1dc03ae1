"""The task that tokenizes one part of the sources.

Guarantee: what it writes depends on the part's records, the tokenizer and what is trained on, all of which are in its
key, and on nothing else. Price: the records of one part in memory, a thousand at a time, and their tokens.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import hermetic
from hermetic.data.encode import OnBadRecord, TrainOn, encode_part
from hermetic.data.run.options import TokenizerRef
from hermetic.data.run.part_files import PartReceipt, finished_receipt, write_part
from hermetic.data.sources import Part, SourceFile, read_part
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint
from hermetic.errors import PackRunError

__all__ = ["EncodeTask", "encode_task", "part_key", "reusable"]

_PART_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeTask:
    """One part to tokenize."""

    file: SourceFile
    part: Part
    tokenizer: TokenizerRef
    train_on: TrainOn
    on_bad_record: OnBadRecord
    folder: str
    key: str


def part_key(file: SourceFile, part: Part, *, tokenizer: TokenizerRef, train_on: str) -> str:
    """A name for what a part becomes: the hash of all that decides it."""
    identity = {
        "format": _PART_FORMAT,
        "version": hermetic.__version__,
        "file": [file.name, file.kind, file.sha256],
        "part": [part.start, part.stop, part.first_number],
        "tokenizer": [tokenizer.fingerprint, str(tokenizer.today)],
        "train_on": train_on,
    }
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def reusable(task: EncodeTask) -> PartReceipt | None:
    """What an earlier run made of this part; of a part with bad records only if they are to be skipped."""
    receipt = finished_receipt(Path(task.folder), task.key)
    if receipt is not None and receipt.skipped and task.on_bad_record == "error":
        return None
    return receipt


def encode_task(task: EncodeTask) -> PartReceipt:
    """Tokenize a part and write it.

    Raises:
        SourceError: If the source is malformed or has changed since it was listed.
        RecordError: If a record is malformed.
        TemplateError: If a conversation cannot be rendered.
        PackRunError: If the tokenizer is no longer the one that the run began with.
    """
    encoded = encode_part(
        read_part(task.file, task.part),
        tokenizer=_loaded(task.tokenizer),
        train_on=task.train_on,
        on_bad_record=task.on_bad_record,
        today=task.tokenizer.today,
    )
    return write_part(Path(task.folder), task.key, encoded)


@lru_cache(maxsize=1)
def _loaded(tokenizer: TokenizerRef) -> Any:
    loaded = load_tokenizer(tokenizer.name, trust_remote_code=tokenizer.trust_remote_code)
    found = tokenizer_fingerprint(loaded)
    if found != tokenizer.fingerprint:
        raise PackRunError(
            f"the tokenizer {tokenizer.name} changed during the run: its fingerprint was {tokenizer.fingerprint[:12]}, "
            f"and is {found[:12]}; expected one that nothing writes to. Run again to tokenize all with the new one"
        )
    return loaded

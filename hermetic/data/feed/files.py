"""Documents of source files, read and tokenized when a stream comes to them.

Guarantee: a part gives the same documents each time, or an error: files that changed since they were fingerprinted are
refused, and the fingerprint covers the files, the tokenizer and the options. It holds no path, so a state is good where
the same files lie elsewhere. Price: each reading of a part renders and tokenizes it again.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermetic.data.encode import OnBadRecord, TrainOn, encode_part
from hermetic.data.feed.source import DocumentPart
from hermetic.data.sources import PART_BYTES, Part, SourceFile, find_files, parse_source, read_part, split_into_parts
from hermetic.data.tokenizer import tokenizer_fingerprint
from hermetic.errors import FeedError


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDocuments:
    """A source of documents in files; :meth:`find` makes one.

    Example:
        ``FileDocuments.find(["chats/*.jsonl.gz"], tokenizer=load_tokenizer("tokenizer"), spool="run/spool")``
    """

    files: tuple[SourceFile, ...]
    parts: tuple[Part, ...]
    tokenizer: Any = field(repr=False)
    train_on: TrainOn
    on_bad_record: OnBadRecord
    fingerprint: str
    """SHA-256 over all that the documents depend on."""

    @classmethod
    def find(
        cls,
        sources: Sequence[str],
        *,
        tokenizer: Any,
        spool: str | os.PathLike[str],
        train_on: TrainOn = "assistant",
        on_bad_record: OnBadRecord = "error",
        part_bytes: int = PART_BYTES,
    ) -> "FileDocuments":
        """Fingerprint the files of sources and cut them into parts.

        Args:
            sources: paths, globs and the like, as :func:`hermetic.data.sources.parse_source` reads them.
            tokenizer: a Hugging Face tokenizer.
            spool: a folder for plain copies of compressed files, which has to stay while the stream is used.
            train_on: as in :func:`hermetic.data.encode.encode_part`.
            on_bad_record: as in :func:`hermetic.data.encode.encode_part`; a ledger counts what ``"skip"`` skips.
            part_bytes: about how large a part is.

        Raises:
            SourceError: A source stands for no file, or a file cannot be cut.
            FeedError: A source has a weight. While reading: a part holds preference pairs.
        """
        specs = [parse_source(source) for source in sources]
        for spec in specs:
            if spec.weight != 1:
                raise FeedError(
                    f"the source {spec.location!r} has the weight {spec.weight:g}, and a stream takes each document "
                    "once an epoch; pack weighted sources into a folder and use PackedDataset"
                )
        files = find_files(specs, spool=Path(spool))
        parts = split_into_parts(files, part_bytes=part_bytes)
        identity = {
            "files": [file.sha256 for file in files],
            "parts": [(part.file, part.start, part.stop) for part in parts],
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "train_on": train_on,
            "on_bad_record": on_bad_record,
        }
        return cls(
            files=tuple(files),
            parts=tuple(parts),
            tokenizer=tokenizer,
            train_on=train_on,
            on_bad_record=on_bad_record,
            fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        )

    @property
    def num_parts(self) -> int:
        """Runs of whole records of about ``part_bytes``."""
        return len(self.parts)

    def read(self, part: int) -> DocumentPart:
        """Read, render and tokenize the records of a part."""
        place = self.parts[part]
        file = self.files[place.file]
        encoded = encode_part(
            read_part(file, place),
            tokenizer=self.tokenizer,
            train_on=self.train_on,
            on_bad_record=self.on_bad_record,
        )
        if encoded.roles.any():
            raise FeedError(
                f"{file.name} holds preference pairs, which belong into one row; pack them into a folder and use "
                "PackedDataset"
            )
        return DocumentPart(
            tokens=encoded.tokens, labels=encoded.labels, lengths=encoded.lengths, num_skipped=len(encoded.skipped)
        )

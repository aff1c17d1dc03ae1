"""What a run notes down about what it has finished.

Algorithm: a line with a SHA-256, and the line that it is of: one JSON object. Guarantee: what is read is what was
written; a note that a disk or a hand has changed counts as none, and what it was about is made again. Price: a hash of
some hundred bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermetic.files import write_text

__all__ = ["read_receipt", "write_receipt"]


def write_receipt(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    line = json.dumps(values)
    write_text(path, f"{hashlib.sha256(line.encode()).hexdigest()}\n{line}\n")


def read_receipt(path: Path) -> dict[str, Any] | None:
    """What ``write_receipt`` wrote; None if there is no such file, or it is no longer as it was written."""
    if not path.is_file():
        return None
    digest, _, line = path.read_bytes().removesuffix(b"\n").partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != digest:
        return None
    values: dict[str, Any] = json.loads(line)
    return values

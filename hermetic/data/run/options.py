"""What decides the bytes of a pack, as plain data."""

from dataclasses import dataclass
from datetime import date

from hermetic.data.encode import OnBadRecord, TrainOn

__all__ = ["PackOptions", "TokenizerRef"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRef:
    """A tokenizer that a task loads by itself."""

    name: str
    """A folder as an absolute path, for a task may run elsewhere, or a model id."""

    trust_remote_code: bool
    fingerprint: str
    today: date | None
    """The date that its chat template writes; None if it writes none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """What decides the rows beside the sources and the tokenizer."""

    capacity: int
    strategy: str
    on_overflow: str
    seed: int | None
    train_on: TrainOn
    on_bad_record: OnBadRecord
    file_format: str
    weights: tuple[float, ...]
    """Of each source."""

    shard_tokens: int

"""Checked records, one type for each way in which tokens and labels are made.

Several shapes share a type: ShareGPT and Alpaca become the same conversation as ``messages``.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ChatRecord", "PairRecord", "PlainRecord", "PreferenceRecord", "Record", "TextRecord", "TokenRecord"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRecord:
    """A conversation of at least one message."""

    where: str
    messages: list[Message]
    tools: list[Message] | None = None
    first: int = 0
    """Assistant turns before this message are context: the prompt of a completion, or of a preference."""

    def up_to(self, message: int) -> "ChatRecord":
        """The conversation before message ``message``."""
        return ChatRecord(where=self.where, messages=self.messages[:message], tools=self.tools)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRecord:
    """A prompt and its completion, tokenized apart."""

    where: str
    prompt: str
    completion: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecord:
    """One text."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """Tokens and labels as they were given, both ``[T]`` int32."""

    where: str
    input_ids: TokenArray
    labels: TokenArray


PlainRecord: TypeAlias = ChatRecord | PairRecord | TextRecord | TokenRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceRecord:
    """Two documents that begin alike, of which the first is preferred; both are of the same type."""

    where: str
    chosen: ChatRecord | PairRecord | TextRecord
    rejected: ChatRecord | PairRecord | TextRecord


Record: TypeAlias = PlainRecord | PreferenceRecord

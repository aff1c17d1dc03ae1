"""Which tokens an assistant's turn has: from characters to tokens, and up to its end of turn.

Guarantee: a token belongs to a span of characters if any of its characters does, as in transformers'
``return_assistant_tokens_mask``; a turn's supervision ends with its end-of-turn token, also where the template's
markers leave that token out (or the model would never learn to stop) or take in the white space after it (which
a model that has stopped never writes). Which tokens these are is read off a conversation of two short turns, and
they count only where they follow a turn: no label depends on the value of its token alone. Price: a search for
two characters in each turn; all offsets of a document only where its tokenizer leaves characters out.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hermetic.data.encoded import Span
from hermetic.data.rendering import Whole

__all__ = ["EndOfTurn", "spans_of_tokens"]


def spans_of_tokens(whole: Whole) -> list[Span]:
    """The tokens of what the template marks, in order; an empty mark gives the empty span before the next token.

    Example:
        "ab cd" with tokens of the characters (0, 2), (2, 3), (3, 5): the span (3, 4) has the tokens (2, 3).
    """
    found = [_span_by_search(whole.encoding, start, stop, len(whole.text)) for start, stop in whole.marked]
    spans = [span for span in found if span is not None]
    return spans if len(spans) == len(found) else _spans_by_offsets(whole.encoding.offsets, whole.marked)


def _span_by_search(encoding: Any, start: int, stop: int, length: int) -> Span | None:
    """None if a border lies where no token is, so that a search for one character does not tell."""
    first, last = _token_at(encoding, start, length), _token_at(encoding, stop, length)
    if first is None or last is None:
        return None
    if start == stop:
        return (first, first) if _begins_at_or_after(encoding, first, start) else None
    # Several tokens may share a character: an emoji of four bytes, or two letters composed into one.
    clean = _begins_at_or_after(encoding, last, stop) and not (last and _begins_at_or_after(encoding, last - 1, stop))
    return (first, last) if clean else None


def _begins_at_or_after(encoding: Any, token: int, character: int) -> bool:
    return token >= len(encoding) or encoding.token_to_chars(token)[0] >= character


def _token_at(encoding: Any, character: int, length: int) -> int | None:
    """The first token that has this character."""
    if character >= length:
        return len(encoding)
    token: int | None = encoding.char_to_token(character)
    return token


def _spans_by_offsets(offsets: Sequence[Span], characters: Sequence[Span]) -> list[Span]:
    """The same from the characters of all tokens; a token that touches no character is in no span."""
    edges = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    starts, stops = edges[:, 0], edges[:, 1]
    spans = []
    for start, stop in characters:
        inside = np.flatnonzero((starts < stop) & (stops > start))
        at = int(np.searchsorted(starts, start))
        spans.append((int(inside[0]), int(inside[-1]) + 1) if len(inside) else (at, at))
    return spans


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOfTurn:
    """What stands between an answer and the next turn."""

    lead: list[int]
    """White space that the template itself writes before the closing tokens."""

    closing: frozenset[int]
    """Added tokens that close a turn."""

    blank: frozenset[int]
    """White space around them."""

    @classmethod
    def from_trial(cls, ids: list[int], tokenizer: Any) -> "EndOfTurn":
        """Read it off the tokens of a conversation that ends in a short answer.

        Example:
            ``[7, 5, 9, 2, 9]`` with 2 added and 9 a line break: lead ``[9]``, closing 2, blank 9.
        """
        added = tokenizer.added_tokens_decoder
        tail = list(
            itertools.takewhile(lambda token: token in added or not tokenizer.decode([token]).strip(), reversed(ids))
        )[::-1]
        return cls(
            lead=list(itertools.takewhile(lambda token: token not in added, tail)),
            closing=frozenset(token for token in tail if token in added),
            blank=frozenset(token for token in tail if token not in added),
        )

    def up_to_end(self, ids: list[int], span: Span) -> Span:
        """Let a turn's span end with the closing tokens that follow it.

        Example:
            With the closing token 2 and the blank 9, the spans (1, 2) and (1, 4) of ``[5, 6, 2, 9, 7]`` both
            become (1, 3).
        """
        start, stop = span
        written = stop
        while written > start and ids[written - 1] in self.blank:
            written -= 1
        if written > start and ids[written - 1] in self.closing:
            stop = written
        elif self._closes_after_lead(ids, stop):
            stop += len(self.lead)
        while stop < len(ids) and ids[stop] in self.closing:
            stop += 1
        return start, stop

    def _closes_after_lead(self, ids: list[int], stop: int) -> bool:
        after = stop + len(self.lead)
        return after < len(ids) and ids[after] in self.closing and ids[stop:after] == self.lead

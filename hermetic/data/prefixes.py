"""Where an answer's tokens begin and end, found by rendering the conversation up to there.

Algorithm: an answer begins where ``messages[:k]`` with the prompt for an answer ends, which is what the model will see
when it has to answer, and ends where ``messages[:k + 1]`` ends. Each prefix has to be, token for token, how the
whole conversation begins. That is usually seen without tokenizing the prefix: a tokenizer cuts its text at special
tokens before anything else, so up to the last special token of the prefix both have the same tokens, and only the
few characters after it (``assistant``, a line break) are tokenized, once, with that token before them. Where this
does not tell, the prefix is tokenized.

Guarantee: the same counts as if every prefix were tokenized; a prefix that is not a beginning is a
:class:`TemplateError` that shows the first difference. Price: two runs of the template for each answer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hermetic.data.encoded import Span
from hermetic.data.encoder import TextEncoder
from hermetic.data.rendering import Rendered, Renderer, Whole
from hermetic.data.shapes.types import ChatRecord
from hermetic.errors import DataError, TemplateError

__all__ = ["PrefixFinder"]

_STEPS_BACK: Final = 16
"""Tokens between a border and the special token before it; the headers of templates are shorter."""
_TAILS_KEPT: Final = 4096
_SHOWN_TOKENS: Final = 6
"""Tokens shown on each side where two renderings part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Border:
    """Where message ``message`` of a conversation begins, or where it ends."""

    whole: Whole
    message: int
    begins: bool

    @property
    def before(self) -> ChatRecord:
        """The conversation up to here."""
        return self.whole.chat.up_to(self.message if self.begins else self.message + 1)

    @property
    def is_whole(self) -> bool:
        """Whether this is the end of the conversation."""
        return not self.begins and self.message + 1 == len(self.whole.chat.messages)

    @property
    def what(self) -> str:
        """For messages: the part of the conversation that ends here."""
        kind = "prompt before" if self.begins else "conversation up to"
        return f"{self.whole.chat.where}: the {kind} message {self.message}"


class PrefixFinder:
    """Finds answers in conversations whose template does not mark them.

    Args:
        encoder: the tokenizer.
        renderer: its chat template.
    """

    def __init__(self, encoder: TextEncoder, renderer: Renderer) -> None:
        self._encoder = encoder
        self._renderer = renderer
        self._cutting = _cutting_tokens(encoder)
        self._tail_ids = lru_cache(maxsize=_TAILS_KEPT)(self._encode_tail)

    def find(self, wholes: Sequence[Whole], answers: Sequence[Sequence[int]]) -> list[list[Span] | DataError]:
        """The tokens of answers, or why they cannot be told.

        Args:
            wholes: conversations.
            answers: which messages of each are wanted; each is the assistant's.
        """
        borders = [
            _Border(whole=whole, message=message, begins=begins)
            for whole, messages in zip(wholes, answers, strict=True)
            for message in messages
            for begins in (True, False)
        ]
        counts = iter(self._counts(borders))
        return [_spans([(next(counts), next(counts)) for _ in messages]) for messages in answers]

    def _counts(self, borders: Sequence[_Border]) -> list[int | DataError]:
        """How many tokens stand before each border."""
        prefixes = self._render(borders)
        counts = [self._count(*pair) for pair in zip(borders, prefixes, strict=True)]
        untold = [index for index, count in enumerate(counts) if count is None]
        texts = [prefix.text for prefix in (prefixes[index] for index in untold) if isinstance(prefix, Rendered)]
        tokens = self._encoder.token_ids([borders[index].what for index in untold], texts)
        told = {
            index: ids if isinstance(ids, DataError) else self._compare(borders[index], ids)
            for index, ids in zip(untold, tokens, strict=True)
        }
        return [told[index] if count is None else count for index, count in enumerate(counts)]

    def _render(self, borders: Sequence[_Border]) -> list[Rendered | DataError]:
        rendered: dict[int, Rendered | DataError] = {}
        for begins in (True, False):
            chosen = [index for index, border in enumerate(borders) if border.begins == begins and not border.is_whole]
            chats = [borders[index].before for index in chosen]
            rendered.update(zip(chosen, self._renderer.render(chats, prompt=begins), strict=True))
        return [
            Rendered(text=border.whole.text) if border.is_whole else rendered[index]
            for index, border in enumerate(borders)
        ]

    def _count(self, border: _Border, prefix: Rendered | DataError) -> int | DataError | None:
        """The tokens before a border, or None where only tokenizing the prefix tells."""
        if isinstance(prefix, DataError):
            return prefix
        text, ids = border.whole.text, border.whole.ids
        stop = len(prefix.text)
        if not text.startswith(prefix.text):
            return None
        if stop == len(text):
            return len(ids)
        at = self._last_cut(border.whole, stop)
        if at is None:
            return None
        tail = self._tail_ids(text[border.whole.encoding.token_to_chars(at)[0] : stop])
        return at + len(tail) if ids[at : at + len(tail)] == tail else None

    def _last_cut(self, whole: Whole, stop: int) -> int | None:
        """The last token before a character at which the tokenizer has cut the text, if it is near."""
        after = whole.encoding.char_to_token(stop) if self._cutting else None
        if after is None:
            return None
        for at in range(after - 1, max(after - 1 - _STEPS_BACK, -1), -1):
            content = self._cutting.get(whole.ids[at])
            if content is not None:
                start, end = whole.encoding.token_to_chars(at)
                # A tokenizer may also give a special token, such as the unknown one, to a text that is not its own.
                if end <= stop and whole.text[start:end] == content:
                    return at
        return None

    def _encode_tail(self, tail: str) -> list[int]:
        ids = self._encoder.token_ids(["the prompt for an answer"], [tail])[0]
        if isinstance(ids, DataError):
            raise ids
        return ids

    def _compare(self, border: _Border, prefix: list[int]) -> int | DataError:
        """The length of a prefix that is how the whole begins, or where the two part."""
        ids = border.whole.ids
        if ids[: len(prefix)] == prefix:
            return len(prefix)
        pairs = enumerate(itertools.zip_longest(prefix, ids))
        first = next(index for index, (left, right) in pairs if left != right)
        shown = slice(max(0, first - _SHOWN_TOKENS), first + _SHOWN_TOKENS)
        decode = self._encoder.tokenizer.decode
        return TemplateError(
            f"{border.what} is not how the whole conversation begins: from token {first} on it reads "
            f"{decode(prefix[shown])!r} instead of {decode(ids[shown])!r}; expected a chat "
            "template that never changes earlier turns and an answer whose first characters do not merge with those "
            "before it, or a chat template with generation markers around what the assistant writes",
            reason="template_rewrites",
        )


def _spans(ends: Sequence[tuple[int | DataError, int | DataError]]) -> list[Span] | DataError:
    spans: list[Span] = []
    for start, stop in ends:
        if isinstance(start, DataError):
            return start
        if isinstance(stop, DataError):
            return stop
        spans.append((start, stop))
    return spans


def _cutting_tokens(encoder: TextEncoder) -> dict[int, str]:
    """Added tokens at which a text is cut before anything else happens to it, and which take in nothing around them."""
    if encoder.backend is None or encoder.tokenizer.split_special_tokens:
        return {}
    return {
        index: token.content
        for index, token in encoder.backend.get_added_tokens_decoder().items()
        if not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    }

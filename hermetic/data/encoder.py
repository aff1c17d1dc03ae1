"""Texts to token ids, as the tokenizer itself would make them and as fast as it can.

Algorithm: a tokenizer with a Rust backend, whose class does not change how texts reach it, is called there, about a
million characters at a time; the public call would copy each token several times on its way. Any other
tokenizer goes through the public call. Guarantee: the same ids either way, without special tokens added, padding
or truncation; afterwards the tokenizer is in the state that it was in before. A text that the tokenizer refuses
is an error of its own and costs no other text. Price: the encodings of about a million characters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from hermetic.data.dependencies import import_optional
from hermetic.data.shapes.checks import check_unicode
from hermetic.errors import RecordError

__all__ = ["TextEncoder", "undisturbed"]

T = TypeVar("T")

_CHARACTERS_AT_ONCE: Final = 1 << 20
_DECIDING_METHODS: Final = ("__call__", "_encode_plus", "apply_chat_template")
"""What a class of tokenizers may override so that its backend alone no longer tells its tokens."""


class TextEncoder:
    """A tokenizer, and the shortest safe way to its tokens.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend: Any | None = tokenizer.backend_tokenizer if _is_plain(tokenizer) else None
        """The Rust tokenizer, if it alone decides what tokens a text has."""

        self.end: int | None = tokenizer.eos_token_id
        self.start: list[int] = _start_of_text(tokenizer)
        """The beginning-of-text token, if this tokenizer begins texts with it."""

    def token_ids(self, wheres: Sequence[str], texts: Sequence[str]) -> list[list[int] | RecordError]:
        """The token ids of each text, or why it has none; ``wheres`` names the texts in errors."""
        if self.backend is None:
            return _each(self._call, wheres, texts)
        encoded = _each(_fast(self.backend.encode_batch_fast), wheres, texts)
        return [found if isinstance(found, RecordError) else found.ids for found in encoded]

    def encodings(self, wheres: Sequence[str], texts: Sequence[str]) -> list[Any | RecordError]:
        """The Rust encodings of each text, which also know the characters of each token; needs a backend."""
        return _each(_fast(self.tokenizer.backend_tokenizer.encode_batch), wheres, texts)

    def _call(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, truncation=False, padding=False)[
            "input_ids"
        ]
        return ids

    def closed(self, tokens: list[int]) -> list[int]:
        """The tokens with one end-of-text token at their end, if the tokenizer has one; none stay none."""
        return tokens if self.end is None or not tokens or tokens[-1] == self.end else [*tokens, self.end]


def _fast(encode: Any) -> Callable[[list[str]], list[Any]]:
    def call(texts: list[str]) -> list[Any]:
        encodings: list[Any] = encode(texts, add_special_tokens=False)
        return encodings

    return call


def _each(
    call: Callable[[list[str]], Sequence[T]], wheres: Sequence[str], texts: Sequence[str]
) -> list[T | RecordError]:
    """The results of ``call`` on all texts, in pieces of bounded size."""
    results: list[T | RecordError] = []
    for part in _pieces(texts):
        results += _piece(call, wheres[part], texts[part])
    return results


def _piece(
    call: Callable[[list[str]], Sequence[T]], wheres: Sequence[str], texts: Sequence[str]
) -> Sequence[T | RecordError]:
    try:
        return call(list(texts))
    except MemoryError:
        raise  # no fault of a text
    except Exception:  # noqa: BLE001 - a tokenizer raises what it likes, and one text may be at fault alone
        return [_one(call, *named) for named in zip(wheres, texts, strict=True)]


def _one(call: Callable[[list[str]], Sequence[T]], where: str, text: str) -> T | RecordError:
    try:
        check_unicode(f"{where}: the text", text)
        return call([text])[0]
    except RecordError as error:
        return error
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        return RecordError(
            f"{where}: the tokenizer refuses the text that begins with {text[:40]!r} ({error}), expected one that it "
            "has tokens for; change the text or the tokenizer",
            reason="tokenizer_refused",
        )


def _pieces(texts: Sequence[str]) -> Iterator[slice]:
    """Runs of texts of about a million characters, each of at least one text."""
    start = characters = 0
    for stop, text in enumerate(texts, start=1):
        characters += len(text)
        if characters >= _CHARACTERS_AT_ONCE or stop == len(texts):
            yield slice(start, stop)
            start, characters = stop, 0


def _is_plain(tokenizer: Any) -> bool:
    """Whether the Rust backend, and nothing in the tokenizer's class, decides the tokens of a text."""
    base = import_optional("transformers").PreTrainedTokenizerFast
    if not isinstance(tokenizer, base):
        return False
    return all(getattr(type(tokenizer), name) is getattr(base, name) for name in _DECIDING_METHODS)


def _start_of_text(tokenizer: Any) -> list[int]:
    begun = tokenizer("a", add_special_tokens=True)["input_ids"]
    return [begun[0]] if tokenizer.bos_token_id is not None and begun[0] == tokenizer.bos_token_id else []


@contextmanager
def undisturbed(tokenizer: Any) -> Iterator[None]:
    """Padding and truncation are off inside, and afterwards as they were."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        yield
        return
    padding, truncation, split = backend.padding, backend.truncation, backend.encode_special_tokens
    try:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = tokenizer.split_special_tokens
        yield
    finally:
        backend.encode_special_tokens = split
        if padding is not None:
            backend.enable_padding(**padding)
        if truncation is not None:
            backend.enable_truncation(**truncation)

"""Rows of a packed folder as text: every token decoded, supervised ones told apart, documents kept apart.

Algorithm: rows are drawn with a seed, without repetition, and shown in their order. Each token's text is what it adds
to the text of the token before it, so that a character of several tokens appears with its last one, and a token that
the vocabulary names (``<|end|>``) appears by that name. Guarantee: what is shown is what is trained on, token by token;
the tokenizer is the one that made the rows, by its fingerprint. Price: that of :func:`hermetic.data.open_packed`, and
two short decodings a token shown.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data.blocks import PackedBlock, block_of_row, source_names
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.sources import location
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint
from hermetic.errors import DataError

__all__ = ["ShownDocument", "ShownRow", "ShownRows", "ShownToken", "require_tokenizer_of", "show_packed", "texts_of"]

ROLES: Final = ("", "chosen", "rejected")
_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"
"""What decoders give for bytes that are not yet, or not at all, a character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownToken:
    """One token of a document."""

    id: int
    text: str | None
    """What it adds to the text, ``""`` where its character ends with a later token; None without a tokenizer."""

    special: bool
    """Whether ``text`` is a name of the vocabulary, such as ``<|end|>``, and no text."""

    supervised: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownDocument:
    """One document or fragment of a row."""

    document: int
    """Which of the documents that were read, from 0."""

    where: str
    """Source and 1-based line or row of it."""

    role: str
    """``"chosen"`` or ``"rejected"`` of a preference pair, otherwise ``""``."""

    tokens: tuple[ShownToken, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """One row with its documents in order."""

    row: int
    documents: tuple[ShownDocument, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRows:
    """Rows that were drawn from a packed folder."""

    path: str
    seed: int
    rows_in_all: int
    capacity: int
    rows: tuple[ShownRow, ...]

    def to_json(self) -> str:
        """One JSON object; every character beyond printable ASCII is escaped."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def show_packed(
    path: str | os.PathLike[str],
    *,
    rows: int = 1,
    tokenizer: str | os.PathLike[str] | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> ShownRows:
    """Draw rows of a packed folder and decode them.

    Args:
        path: the folder.
        rows: how many to draw; all, if the folder has fewer.
        tokenizer: the one that made the rows, a folder or a model id; without one, tokens stay ids.
        seed: of the draw; the same seed draws the same rows.
        trust_remote_code: whether the tokenizer may bring code of its own and run it.

    Raises:
        PackedDataError: If it is not a packed folder, or is damaged.
        DataError: If ``rows`` is below 1, ``seed`` below 0, or the tokenizer is not the one that made the rows.
        MissingDependencyError: If datasets, or for a tokenizer transformers, is not installed.
    """
    for name, value, least in (("rows", rows, 1), ("seed", seed, 0)):
        if value < least:
            raise DataError(f"{name} is {value}, expected at least {least}")
    packed = open_packed(path)
    loaded = None
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        require_tokenizer_of(packed, loaded, os.fspath(tokenizer))
    drawn = np.random.default_rng(seed).choice(len(packed), size=min(rows, len(packed)), replace=False)
    return ShownRows(
        path=os.fspath(path),
        seed=seed,
        rows_in_all=len(packed),
        capacity=packed.manifest.capacity,
        rows=tuple(_shown_row(packed, row, loaded) for row in sorted(drawn.tolist())),
    )


def require_tokenizer_of(packed: PackedData, tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that did not make these rows: its texts would be of other tokens.

    Raises:
        DataError: If its fingerprint is not that of the manifest.
    """
    found = tokenizer_fingerprint(tokenizer)
    if found != packed.manifest.tokenizer_fingerprint:
        raise DataError(
            f"the tokenizer {name} has the fingerprint {found}, expected {packed.manifest.tokenizer_fingerprint}, that "
            f"of the one that made {packed.path}; name that one"
        )


def _shown_row(packed: PackedData, row: int, tokenizer: Any) -> ShownRow:
    block = block_of_row(packed, row)
    documents = (_shown_document(packed, block, index, tokenizer) for index in range(len(block.lengths)))
    return ShownRow(row=row, documents=tuple(documents))


def _shown_document(packed: PackedData, block: PackedBlock, index: int, tokenizer: Any) -> ShownDocument:
    start, length = int(block.starts[index]), int(block.lengths[index])
    ids = block.input_ids[start : start + length].tolist()
    supervised = (block.labels[start : start + length] != IGNORE_INDEX).tolist()
    texts = [(None, False)] * length if tokenizer is None else texts_of(tokenizer, ids)
    return ShownDocument(
        document=int(block.document_ids[index]),
        where=location_of(packed, block, index),
        role="" if block.roles is None else ROLES[int(block.roles[index])],
        tokens=tuple(
            ShownToken(id=token, text=text, special=special, supervised=trained)
            for token, (text, special), trained in zip(ids, texts, supervised, strict=True)
        ),
    )


def location_of(packed: PackedData, block: PackedBlock, index: int) -> str:
    """Source and line of document ``index`` of a block."""
    name = source_names(packed.manifest)[int(block.source_ids[index])]
    return location(Path(name), int(block.record_numbers[index]))


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, bool]]:
    """The text that each token adds, and whether it is a name instead.

    Example:
        The two tokens of ``"é"`` in a vocabulary of bytes: ``[("", False), ("é", False)]``. A token ``<|end|>``:
        ``[("<|end|>", True)]``. An id that no token has: ``[("<no token 99>", True)]``.
    """
    named = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
    texts: list[tuple[str, bool]] = []
    plain: list[int] = []
    for token in ids:
        name = named.get(token) or (None if 0 <= token < len(tokenizer) else f"<no token {token}>")
        if name is None:
            plain.append(token)
            continue
        texts.extend((text, False) for text in _additions(tokenizer, plain))
        texts.append((name, True))
        plain = []
    texts.extend((text, False) for text in _additions(tokenizer, plain))
    return texts


def _additions(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text of those before it.

    Only the tokens since the last complete character, and the token before them, are decoded again: decoders
    look back no further, and a whole prefix for each token would cost the square of the length.
    """
    context = shown = 0
    for stop in range(1, len(ids) + 1):
        before = _decoded(tokenizer, ids[context:shown])
        text = _decoded(tokenizer, ids[context:stop])
        if text.endswith(_INCOMPLETE) and stop < len(ids):
            yield ""
            continue
        yield text[len(before) :]
        context, shown = shown, stop


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text

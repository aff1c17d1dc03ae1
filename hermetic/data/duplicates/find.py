"""Near-duplicate documents of a packed folder, and which of them share a row.

Two copies in one row are how a leak flatters: without a seal the second one reads the first, its loss falls, and
nothing was learned. Sealed, a copy is merely trained on twice.

Algorithm: MinHash signatures of the documents' shingles, cut into bands (locality-sensitive hashing); documents that
agree in a band are candidates, and the exact Jaccard similarity of each candidate pair decides. Guarantee: no pair is
reported that is not as similar as it says; a pair at the threshold is missed with probability ``miss_at_threshold``, a
more similar one more rarely; the same folder, threshold and seed give the same report. Pairs of one record (copies that
a weight asked for, the two answers of a preference pair, the fragments of one document) are meant to be alike, and only
counted. Price: one pass over the rows, then one look at the tokens of each candidate; about 530 bytes a document, and
the tokens of a batch of candidates.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.data.blocks import source_names
from hermetic.data.dependencies import import_optional
from hermetic.data.duplicates.candidates import candidates, similarities
from hermetic.data.duplicates.corpus import SIGNATURE, Corpus
from hermetic.data.duplicates.findings import Example, Findings
from hermetic.data.packed import open_packed
from hermetic.data.show import require_tokenizer_of
from hermetic.data.sources import location
from hermetic.data.tokenizer import load_tokenizer
from hermetic.errors import DataError

__all__ = ["DuplicateDocument", "DuplicatePair", "DuplicateReport", "find_duplicates"]

_MOST_MISSED: Final = 1e-3
_SHOWN_TOKENS: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateDocument:
    """One document of a pair."""

    where: str
    """Source and 1-based line or row of it."""

    row: int
    tokens: int
    text: str | None
    """How it begins; None without a tokenizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicatePair:
    """Two documents and how alike they are."""

    similarity: float
    """Jaccard similarity of their sets of shingles, exact."""

    in_one_row: bool
    documents: tuple[DuplicateDocument, DuplicateDocument]


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateReport:
    """The near-duplicates of a packed folder; fragments count as documents."""

    path: str
    threshold: float
    seed: int
    documents: int
    tokens: int
    pairs: int
    """Pairs of documents of different records, at least as similar as the threshold."""

    identical_pairs: int
    """Those of them whose tokens are the same, all of them and in order."""

    pairs_in_one_row: int
    pairs_of_one_record: int
    """Pairs that are alike because they were meant to be; not among ``pairs``."""

    documents_in_pairs: int
    tokens_in_pairs: int
    clusters: int
    """Groups of documents that chains of pairs hold together."""

    largest_cluster: int
    candidates: int
    """Pairs whose exact similarity was computed; copies of a document stand as one."""

    miss_at_threshold: float
    """Probability that a pair exactly at the threshold is no candidate."""

    examples: tuple[DuplicatePair, ...]
    """Pairs that share a row first, then by similarity, then by length."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def find_duplicates(
    path: str | os.PathLike[str],
    *,
    threshold: float = 0.8,
    tokenizer: str | os.PathLike[str] | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> DuplicateReport:
    """Find the near-duplicate documents of a packed folder.

    Args:
        path: the folder.
        threshold: Jaccard similarity of the sets of three-token shingles, from 0.5 to 1, at which a pair counts.
        tokenizer: the one that made the rows, a folder or a model id, to show how documents begin.
        seed: of the signatures, from 0 up.
        trust_remote_code: whether the tokenizer may bring code of its own and run it.
        on_stage: called with what is being done.

    Raises:
        DataError: If the threshold is not in that range, the tokenizer did not make the rows, or token ids are so
            large that three of them do not fit a 64-bit number.
        PackedDataError: If it is not a packed folder, or is damaged.
        MissingDependencyError: If rensa or datasets is not installed.

    Example:
        Documents ``[1, 2, 3, 4]`` and ``[1, 2, 3, 5]`` have the shingles 123, 234 and 123, 235: similarity 1/3.
    """
    if not 0.5 <= threshold <= 1.0:
        raise DataError(
            f"threshold is {threshold}, expected 0.5 to 1: documents that share less are no near-duplicates"
        )
    if seed < 0:
        raise DataError(f"seed is {seed}, expected at least 0")
    rensa = import_optional("rensa", install="hermetic[data]")
    say = on_stage or (lambda _: None)
    say("verifying the folder")
    packed = open_packed(path)
    loaded = None
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        require_tokenizer_of(packed, loaded, os.fspath(tokenizer))
    width = _band_width(threshold)
    corpus = Corpus.read(packed, rensa, width=width, seed=seed, say=say)
    found = Findings(corpus)
    found.add_copies()
    for pairs in candidates(corpus.keys, say):
        found.add(pairs, similarities(corpus, pairs), threshold)
    return DuplicateReport(
        path=os.fspath(path),
        threshold=threshold,
        seed=seed,
        miss_at_threshold=_miss(threshold, width),
        **found.counts(),
        examples=tuple(_pair(corpus, example, loaded) for example in found.examples),
    )


def _band_width(threshold: float) -> int:
    """The widest band, so the fewest candidates, with which hardly a pair at the threshold is missed."""
    return max(width for width in range(1, SIGNATURE + 1) if _miss(threshold, width) <= _MOST_MISSED)


def _miss(threshold: float, width: int) -> float:
    """The probability that no band of ``width`` signature entries agrees, at this similarity."""
    return float((1.0 - threshold**width) ** (SIGNATURE // width))


def _pair(corpus: Corpus, example: Example, tokenizer: Any) -> DuplicatePair:
    together, similarity, _, first, second = example
    one, other = (_document(corpus, document, tokenizer) for document in (first, second))
    return DuplicatePair(similarity=similarity, in_one_row=together, documents=(one, other))


def _document(corpus: Corpus, document: int, tokenizer: Any) -> DuplicateDocument:
    tokens = corpus.tokens(document)
    name = source_names(corpus.packed.manifest)[int(corpus.sources[document])]
    return DuplicateDocument(
        where=location(Path(name), int(corpus.numbers[document])),
        row=int(corpus.rows[document]),
        tokens=len(tokens),
        text=None if tokenizer is None else tokenizer.decode(tokens[:_SHOWN_TOKENS].tolist()),
    )

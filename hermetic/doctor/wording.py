"""A diagnosis in words, for the terminal and for the page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermetic.markup import counted

if TYPE_CHECKING:
    from hermetic.doctor.diagnosis import Diagnosis

_HEADS = {
    "sealed": ("sound", "the documents of a row do not reach each other"),
    "leak": ("leak", "the documents of a row reach each other"),
    "distortion": ("distortion", "no document reaches another, but packing changes what is computed"),
    "row_length_dependent": ("", "no document reaches another, but what is computed depends on the length of the row"),
    "not_causal": ("", "a token sees later tokens of its own document"),
    "unsupported": ("", "the model cannot run packed rows"),
    "one_document_per_row": ("sound", "one document per row, not packed, so there is no neighbour to reach"),
    "no_boundaries": ("no boundaries in the data", "a whole row is one document to the model"),
    "contradictory": ("", "the call contradicts itself about where documents start"),
}

ENDED = "The command was ended at its first training batch; no optimizer step was taken."


def headline(diagnosis: "Diagnosis") -> tuple[str, str]:
    """The verdict in a word or two, empty where the sentence says it, and the sentence."""
    word, sentence = _HEADS[diagnosis.verdict]
    if diagnosis.verdict == "leak" and all(finding.code.startswith("HM4") for finding in diagnosis.findings):
        sentence = "a document learns to predict tokens of the next one"
    if diagnosis.findings and word == "sound":
        return "not sound", f"{diagnosis.findings[0].what}; otherwise {sentence}"
    return word, sentence


def lengths_in_words(lengths: Sequence[int]) -> str:
    """How long documents are.

    Example:
        >>> lengths_in_words([5, 1234]), lengths_in_words([256, 256]), lengths_in_words([1])
        ('5 to 1,234 tokens', '256 tokens', '1 token')
    """
    shortest, longest = min(lengths), max(lengths)
    return counted(longest, "token") if shortest == longest else f"{shortest:,} to {counted(longest, 'token')}"


def source_in_words(diagnosis: "Diagnosis") -> str:
    """Who says where documents start."""
    if diagnosis.packing == "contradictory":
        return "arguments that contradict each other"
    if diagnosis.source is None:
        return "nothing, so each row counts as one"
    return f"{diagnosis.source}, which is made for something else" if diagnosis.inferred else diagnosis.source


def batch_in_words(diagnosis: "Diagnosis") -> str:
    """What the first training batch holds, and who says where its documents start."""
    text = f"first training batch: {diagnosis.rows} x {diagnosis.slots} tokens"
    if not diagnosis.documents:
        return text
    text += f", {counted(len(diagnosis.documents), 'document')} of {lengths_in_words(diagnosis.documents)}"
    if diagnosis.source is None:
        return f"{text}; nothing says where documents start, so each row counts as one"
    how = f"inferred from {diagnosis.source}" if diagnosis.inferred else f"given as {diagnosis.source}"
    return f"{text}; boundaries {how}"

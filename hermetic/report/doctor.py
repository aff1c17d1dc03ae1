"""A diagnosis as one page: the verdict, what to do, the first batch and its mask, and what the probe measured."""

from itertools import accumulate

from hermetic.doctor import Diagnosis
from hermetic.doctor.wording import ENDED, batch_in_words, headline, lengths_in_words, source_in_words
from hermetic.markup import Look, Section, Verdict, capital, document, escaped, facts, section, soft
from hermetic.probe.page import evidence, to_do
from hermetic.report.mask import mask_of


def doctor_page(diagnosis: Diagnosis) -> str:
    """The diagnosis as the text of an HTML file.

    Raises:
        ProbeError: the probe's report has a ``reach`` that is not of its own documents.
    """
    measured = () if diagnosis.report is None else evidence(diagnosis.report)
    sections = (to_do(diagnosis.findings), _batch(diagnosis), _mask(diagnosis), *measured, _notes(diagnosis))
    return document(_verdict(diagnosis), sections)


def _verdict(diagnosis: Diagnosis) -> Verdict:
    word, sentence = headline(diagnosis)
    return Verdict(
        kind="doctor",
        subject=diagnosis.model,
        look=_look(diagnosis),
        word=word or diagnosis.verdict.replace("_", " "),
        sentence=f"{capital(sentence)}.",
        facts=f"{capital(batch_in_words(diagnosis))}. {ENDED}",
    )


def _look(diagnosis: Diagnosis) -> Look:
    if not diagnosis.sound:
        return "bad"
    return "good" if diagnosis.verdict in {"sealed", "one_document_per_row"} else "unsure"


def _batch(diagnosis: Diagnosis) -> Section:
    lengths = diagnosis.documents
    pairs = [
        ("rows", f"{diagnosis.rows:,}"),
        ("tokens per row, padding included", f"{diagnosis.slots:,}"),
        ("says where documents start", source_in_words(diagnosis)),
    ]
    if lengths:  # unknown where the call contradicts itself
        pairs[2:2] = [
            ("documents", f"{len(lengths):,}"),
            ("length of a document", lengths_in_words(lengths)),
            ("real tokens", f"{sum(lengths):,}"),
        ]
    return section("The first training batch", facts(pairs, name="The first training batch"))


def _mask(diagnosis: Diagnosis) -> Section | None:
    row = first_row(diagnosis)
    if row is None:
        return None
    how = "What each token of the first row may read, as its boundaries say, and what a plain causal mask lets it read."
    return section("Documents and mask of the first row", soft(how), mask_of(row))


def first_row(diagnosis: Diagnosis) -> tuple[int, ...] | None:
    """Lengths of the documents of the first row, where that is known: of one row, or where rows are full.

    Example:
        Documents of 3, 5 and 8 tokens in two rows of 8: those of 3 and 5. Of 3, 5 and 7: unknown, for the padding may
        be in either row.
    """
    lengths, slots = diagnosis.documents, diagnosis.slots
    if diagnosis.packing != "packed" or sum(lengths) > slots * diagnosis.rows:
        return None
    if diagnosis.rows == 1:
        return lengths
    ends = list(accumulate(lengths))
    return lengths[: ends.index(slots) + 1] if slots in ends and sum(lengths) == slots * diagnosis.rows else None


def _notes(diagnosis: Diagnosis) -> Section | None:
    notes = (f"<p>{escaped(capital(note))}.</p>" for note in diagnosis.notes)
    return section("Seen beside", *notes) if diagnosis.notes else None

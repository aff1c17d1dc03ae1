"""The pages of audits, diagnoses and packs: strict, complete, true to what they report, whatever text is in it."""

import doctest
from dataclasses import replace
from importlib import import_module

import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, write_jsonl
from pages import HOSTILE, SHOWN, objections, parsed, text_of
from reports import PAGES, a_diagnosis, a_finding, an_audit
from test_house_floors import loaded_by
from test_probe_page import everything

from hermetic.data import open_packed, pack_sources
from hermetic.doctor.wording import batch_in_words
from hermetic.errors import DataError, PackedDataError, ReportError
from hermetic.report import audit_page, doctor_page, pack_page, write_report
from hermetic.report.audit import MAX_ENTRIES, MAX_PLACES
from hermetic.report.doctor import first_row
from hermetic.report.seams import MAX_SEAMS


def chat(text):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of hostile text from a file with a hostile name; one is too long and dropped, one is malformed."""
    place = tmp_path_factory.mktemp("packed")
    hostile = HOSTILE.replace("\ud800", "").replace("\x00", "").replace("/", ".")
    records = [chat(hostile)] * 9 + [CHAT] * 20 + [chat("long " * 200)] + [{"input_ids": []}]
    source = write_jsonl(place / f"{hostile}.jsonl", records)
    options = {"capacity": 256, "on_overflow": "drop", "on_bad_record": "skip"}
    pack_sources([source], place / "rows", tokenizer=DEMO_TOKENIZER, **options)
    return place / "rows"


@pytest.mark.parametrize("text", ["text", HOSTILE], ids=["plain", "hostile"])
@pytest.mark.parametrize("kind", PAGES)
def test_every_page_is_strict_and_needs_nothing_but_itself(kind, text):
    page = PAGES[kind](text)
    assert objections(page) == []
    assert "<script" not in page
    assert "<img" not in page
    assert (SHOWN in text_of(page)) == (text == HOSTILE)


@pytest.mark.parametrize("tokenizer", [None, demo_tokenizer()], ids=["ids", "texts"])
def test_the_page_of_a_pack_is_strict_and_shows_hostile_documents_as_text(folder, tokenizer):
    page = pack_page(folder, tokenizer=tokenizer)
    assert objections(page) == []
    assert "<script" not in page
    assert ("You" in text_of(page)) or tokenizer is None
    assert page == pack_page(open_packed(folder), tokenizer=tokenizer)


def test_the_ledger_of_a_pack_adds_up_and_names_what_was_lost(folder):
    page, manifest = pack_page(folder), open_packed(folder).manifest
    (table,) = (one for one in parsed(page).iter("table") if [*one.iter("tr")][-1].get("class") == "sum")
    read, copies, left_out, lost, placed = (
        [int(cell.text.replace(",", "")) for cell in line if cell.tag == "td"] for line in table.find("tbody")
    )
    for column in (0, 1):
        assert read[column] + copies[column] - left_out[column] - lost[column] == placed[column] > 0
    assert lost == [1, manifest.tokens_lost]
    assert manifest.tokens_lost > 256
    shown = text_of(page)
    assert "packed with losses" in shown
    assert f"Lost: {manifest.tokens_lost:,} tokens beyond the capacity, 1 record skipped as empty." in shown
    assert f"In no row: {manifest.tokens_lost:,} tokens of {manifest.tokens_read:,}, by on_overflow=drop" in shown
    assert "Skipped: 1 record, as empty" in shown


def test_a_pack_that_lost_nothing_says_so(tmp_path):
    source = write_jsonl(tmp_path / "one.jsonl", [CHAT])
    pack_sources([source], tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=64)
    shown = text_of(pack_page(tmp_path / "rows"))
    assert "packed whole" in shown
    assert "1 document in 1 row of 64 tokens, " in shown
    assert "Nothing was lost." in shown
    assert "seams in" not in shown  # a single document touches no other
    assert "mask of a row" not in shown


def test_the_seams_of_a_row_are_shown_with_the_label_that_keeps_documents_apart(folder):
    packed = open_packed(folder)
    (table,) = (
        one for one in parsed(pack_page(folder)).iter("table") if "label of the first" in "".join(one.itertext())
    )
    lines = [*table.find("tbody")]
    assert len(lines) == min(MAX_SEAMS, int(packed.documents_per_row[0]) - 1) > 1
    assert {line[3].text for line in lines} == {"-100"}
    before, after, *_ = packed.documents_of_row(0)
    assert lines[0][1].text.split() == [str(one) for one in before["input_ids"][-5:]]
    assert lines[0][2].text.split() == [str(one) for one in after["input_ids"][:5]]


def test_a_damaged_folder_and_another_tokenizer_have_no_page(folder, tmp_path):
    with pytest.raises(PackedDataError, match=r"has no manifest\.json"):
        pack_page(tmp_path)
    other = demo_tokenizer().__class__.from_pretrained(DEMO_TOKENIZER)
    other.add_tokens(["hermetic"])
    with pytest.raises(DataError, match=r"expected .* that of the one that made"):
        pack_page(folder, tokenizer=other)


def test_ten_thousand_findings_that_are_alike_are_one_entry_that_counts_them():
    page = audit_page(an_audit(findings=tuple(a_finding(line=line) for line in range(1, 10_001))))
    assert objections(page) == []
    assert len(page) < 50_000
    assert len([one for one in parsed(page).iter("h3")]) == 1  # noqa: C416 - counted
    shown = text_of(page)
    assert "10,000 findings" in shown
    assert f"10,000 places; {10_000 - MAX_PLACES:,} of them are not listed here" in shown


def test_of_ten_thousand_findings_that_differ_those_that_are_not_shown_are_counted_by_their_code():
    findings = tuple(a_finding(code=f"HM{120 + at % 7}", way_out=str(at)) for at in range(10_000))
    page = audit_page(an_audit(findings=findings))
    assert objections(page) == []
    assert len(page) < 100_000
    assert len([one for one in parsed(page).iter("h3")]) == MAX_ENTRIES  # noqa: C416 - counted
    shown = text_of(page)
    assert f"{10_000 - MAX_ENTRIES:,} more findings are not shown here" in shown
    left = shown.split("are not shown here: ")[1].split(".")[0]
    assert sum(int(one.split("(")[1].rstrip(")").replace(",", "")) for one in left.split(", ")) == 10_000 - MAX_ENTRIES


@pytest.mark.parametrize(
    ("certainties", "look", "word"),
    [
        ((), "good", "nothing found"),
        (("likely",), "unsure", "to be checked"),
        (("depends on version", "likely"), "unsure", "to be checked"),
        (("likely", "certain"), "bad", "not sound"),
    ],
)
def test_an_audit_is_as_sure_as_its_findings(certainties, look, word):
    page = audit_page(an_audit(findings=tuple(a_finding(certainty=one) for one in certainties)))
    (verdict,) = (one for one in parsed(page).iter("div") if "verdict" in (one.get("class") or "").split())
    assert verdict.get("class") == f"verdict {look}"
    assert word in "".join(verdict.itertext())
    tags = [one.text for one in parsed(page).iter("span") if one.get("class") == "tag"]
    assert sorted(tags) == sorted(certainties)
    assert tags == sorted(tags, key=("certain", "likely", "depends on version").index)


def looks_of(page):
    (verdict,) = (one for one in parsed(page).iter("div") if "verdict" in (one.get("class") or "").split())
    return verdict.get("class").split()[1], [p.text for p in verdict.iter("p")]


def test_a_diagnosis_says_on_its_page_what_it_says_on_a_terminal():
    report = replace(everything(), verdict="sealed", findings=())
    sound = a_diagnosis(findings=(), report=report)
    assert looks_of(doctor_page(sound)) == ("good", ["sound", "The documents of a row do not reach each other."])

    leak = a_diagnosis()
    assert looks_of(doctor_page(leak)) == ("bad", ["leak", "The documents of a row reach each other."])

    alone = a_diagnosis(findings=(), report=None, packing="one_document_per_row")
    assert looks_of(doctor_page(alone))[0] == "good"
    assert looks_of(doctor_page(replace(alone, packing="no_boundaries")))[0] == "unsure"

    other = replace(sound, findings=leak.findings)
    look, (word, sentence) = looks_of(doctor_page(other))
    assert (look, word) == ("bad", "not sound")
    assert sentence.startswith("Text; otherwise the documents of a row")


def batch_facts(**changes):
    page = doctor_page(a_diagnosis(**changes))
    heads = ("rows", "documents", "length of a document", "real tokens", "says where documents start")
    rows = [["".join(one.itertext()) for one in tr] for tr in parsed(page).iter("tr")]
    return {row[0]: row[1] for row in rows if row[0] in heads}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": None, "inferred": True}, "nothing, so each row counts as one"),
        ({"source": "position_ids", "inferred": True}, "position_ids, which is made for something else"),
        ({"source": "seq_idx", "inferred": False}, "seq_idx"),
        (
            {"source": None, "inferred": True, "packing": "contradictory", "report": None, "documents": ()},
            "arguments that contradict each other",
        ),
    ],
)
def test_the_page_of_a_diagnosis_says_who_says_where_documents_start(changes, said):
    found = batch_facts(**changes)
    assert found["says where documents start"] == said
    assert ("documents" in found) == (changes.get("documents") != ())


@pytest.mark.parametrize(
    ("documents", "sentence", "length"),
    [
        ((256,) * 8, "8 documents of 256 tokens;", "256 tokens"),
        ((1,), "1 document of 1 token;", "1 token"),
        ((1, 1200), "2 documents of 1 to 1,200 tokens;", "1 to 1,200 tokens"),
    ],
)
def test_a_diagnosis_counts_its_documents_in_plain_words(documents, sentence, length):
    assert sentence in batch_in_words(a_diagnosis(documents=documents))
    assert batch_facts(documents=documents)["length of a document"] == length


def test_the_first_row_is_drawn_where_it_is_known_and_nowhere_else():
    assert first_row(a_diagnosis(documents=(2, 3), rows=1, slots=8)) == (2, 3)
    assert first_row(a_diagnosis(documents=(3, 5, 8), rows=2, slots=8)) == (3, 5)
    assert first_row(a_diagnosis(documents=(3, 5, 7), rows=2, slots=8)) is None  # padding may be in either row
    assert first_row(a_diagnosis(packing="no_boundaries", report=None)) is None
    assert "mask of the first row" in text_of(doctor_page(a_diagnosis()))
    assert "mask of the first row" not in text_of(doctor_page(a_diagnosis(packing="no_boundaries", report=None)))


def test_any_subject_is_written_as_its_own_page(tmp_path, folder):
    subjects = {"audit": an_audit(), "doctor": a_diagnosis(), "probe": everything(), "pack": folder}
    for kind, subject in subjects.items():
        write_report(subject, tmp_path / f"{kind}.html")
        assert f"hermetic {kind}" in text_of((tmp_path / f"{kind}.html").read_text())
    write_report(str(folder), tmp_path / "pack.html")


def test_what_has_no_page_and_where_none_can_be_written_are_refused(tmp_path):
    with pytest.raises(ReportError, match="no report of a int; expected an AuditReport, a LeakReport"):
        write_report(3, tmp_path / "page.html")
    for place in (tmp_path, tmp_path / "nope" / "page.html"):
        with pytest.raises(ReportError, match=f"cannot be written to {place}; expected the name of a file"):
            write_report(an_audit(), place)
    with pytest.raises(ReportError, match=r"cannot be written to .* \(File name too long\)"):
        write_report(an_audit(), tmp_path / ("n" * 300))
    assert [*tmp_path.iterdir()] == []


def test_the_page_of_an_audit_is_made_without_torch_numpy_and_matplotlib():
    heavy = {"torch", "numpy", "matplotlib", "transformers", "rich"}
    make = (
        "from hermetic.audit import AuditReport\nfrom hermetic.report import audit_page, write_report\n"
        "audit_page(AuditReport(subject='a', kind='script', stack=None, findings=()))"
    )
    assert loaded_by(make, heavy) == set()
    assert loaded_by("from hermetic.report import pack_page", {"numpy"}) == {"numpy"}


@pytest.mark.parametrize("module", ["report.audit", "markup.text", "compare.curves"])
def test_the_examples_are_true(module):
    results = doctest.testmod(import_module(f"hermetic.{module}"))
    assert results.attempted > 0
    assert results.failed == 0

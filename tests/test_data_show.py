"""Rows shown as text: every token, nothing but text, and supervision told apart in any terminal."""

import io
import json
import re
import unicodedata

import numpy as np
import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, tokenizer_folder, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hermetic.constants import IGNORE_INDEX
from hermetic.data import RenderedRows, ShownRows, open_packed, pack_sources, show_packed
from hermetic.data.show import ShownDocument, ShownRow, ShownToken, texts_of
from hermetic.data.show_render import printable
from hermetic.errors import DataError, PackedDataError

STYLE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = ["\x1b[31mred", "[bold]loud[/bold]", "<b>page</b>", "\x9b2J", "\x07", "\u202egnp", "a\rb", ":smile:", "\x08"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("show")
    texts = [{"text": f"document {number} " + "word " * number} for number in range(1, 20)]
    pack_sources(
        write_jsonl(here / "mixed.jsonl", [CHAT, *texts]), here / "packed", tokenizer=DEMO_TOKENIZER, capacity=256
    )
    return here / "packed"


def shown(*runs):
    """One row of one document of runs of text, every second one supervised."""
    tokens = tuple(
        ShownToken(id=0, text=text, special=False, supervised=place % 2 == 1) for place, text in enumerate(runs)
    )
    row = ShownRow(row=0, documents=(ShownDocument(document=0, where="a.jsonl:1", role="", tokens=tokens),))
    return ShownRows(path="packed", seed=0, rows_in_all=1, capacity=64, rows=(row,))


def printed(rows, width=80, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(RenderedRows(shown=rows))
    return console.file.getvalue()


def body(output):
    """The lines after the last seam, which is one line when the terminal is wide."""
    lines = output.splitlines()
    return lines[max(place for place, line in enumerate(lines) if line.startswith("── document")) + 1 :]


def controls(output):
    """Characters that could do something to a terminal; a line's end may, and spaces of any width do nothing."""
    harmless = {"\n"} | {character for character in output if unicodedata.category(character) == "Zs"}
    return [character for character in output if not character.isprintable() and character not in harmless]


@given(text=st.text(max_size=40))
@settings(max_examples=50)
def test_the_texts_of_the_tokens_of_a_document_are_together_its_text(text):
    tokenizer = demo_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)

    texts = texts_of(tokenizer, ids)

    assert len(texts) == len(ids)
    assert "".join(part for part, _ in texts) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_character_of_several_tokens_appears_with_its_last_one():
    tokenizer = demo_tokenizer()
    ids = tokenizer.encode("漢", add_special_tokens=False)

    assert len(ids) == 3
    assert texts_of(tokenizer, ids) == [("", False), ("", False), ("漢", False)]
    assert texts_of(tokenizer, ids[:2]) == [("", False), ("\N{REPLACEMENT CHARACTER}", False)]


def test_a_token_that_the_vocabulary_names_appears_by_its_name_and_one_that_it_lacks_by_its_id():
    tokenizer = demo_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|end|>")

    assert texts_of(tokenizer, [end, 99999]) == [("<|end|>", True), ("<no token 99999>", True)]


def test_what_is_shown_is_what_the_rows_hold_token_by_token(folder):
    rows, packed = show_packed(folder, rows=100, tokenizer=DEMO_TOKENIZER), open_packed(folder)

    assert [row.row for row in rows.rows] == list(range(len(packed)))
    for row in rows.rows:
        held = packed.documents_of_row(row.row)
        assert [[token.id for token in document.tokens] for document in row.documents] == [
            document["input_ids"].tolist() for document in held
        ]
        assert [[token.supervised for token in document.tokens] for document in row.documents] == [
            (document["labels"] != IGNORE_INDEX).tolist() for document in held
        ]
        assert [document.document for document in row.documents] == packed.dataset[row.row]["document_ids"]


def test_each_document_is_shown_with_its_source_and_line(folder):
    documents = [document for row in show_packed(folder, rows=100).rows for document in row.documents]

    assert sorted(int(document.where.rpartition(":")[2]) for document in documents) == list(range(1, 21))
    assert {document.where.rpartition(":")[0] for document in documents} == {"mixed.jsonl"}
    assert all(int(document.where.rpartition(":")[2]) == document.document + 1 for document in documents)


def test_documents_of_several_files_and_of_a_preference_pair_are_told_apart(tmp_path):
    pair = {"prompt": "Two and two?", "chosen": "Four.", "rejected": "Five."}
    sources = [write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}]), write_jsonl(tmp_path / "b.jsonl", [CHAT, pair])]
    pack_sources(sources, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=128, file_format="parquet")
    documents = [document for row in show_packed(tmp_path / "packed", rows=9).rows for document in row.documents]

    assert sorted((document.where, document.role) for document in documents) == [
        ("a.jsonl:1", ""),
        ("b.jsonl:1", ""),
        ("b.jsonl:2", "chosen"),
        ("b.jsonl:2", "rejected"),
    ]


def test_the_same_seed_draws_the_same_rows_and_another_one_others(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [number, 5]} for number in range(100)])
    pack_sources(source, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=2)
    drawn = [[row.row for row in show_packed(tmp_path / "packed", rows=9, seed=seed).rows] for seed in (1, 1, 2)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert all(rows == sorted(set(rows)) and len(rows) == 9 for rows in drawn)


def test_without_a_tokenizer_the_tokens_stay_ids(tmp_path):
    pack_sources(
        write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [7, 8, 9]}]),
        tmp_path / "packed",
        tokenizer=DEMO_TOKENIZER,
        capacity=4,
    )

    assert [line.rstrip() for line in body(printed(show_packed(tmp_path / "packed")))] == ["  7", "▌ 8 9"]


def test_what_cannot_be_shown_is_refused(tmp_path, folder):
    other = tokenizer_folder(tmp_path / "other", chat_template=None)

    with pytest.raises(DataError, match="has the fingerprint"):
        show_packed(folder, tokenizer=other)
    with pytest.raises(DataError, match="rows is 0, expected at least 1"):
        show_packed(folder, rows=0)
    with pytest.raises(DataError, match="seed is -1, expected at least 0"):
        show_packed(folder, seed=-1)
    with pytest.raises(PackedDataError, match="has no manifest"):
        show_packed(tmp_path)


@given(runs=st.lists(st.text(max_size=12) | st.sampled_from(HOSTILE), min_size=1, max_size=5), width=st.integers(4, 60))
@settings(max_examples=50)
def test_no_document_reaches_the_terminal(runs, width):
    rows = shown(*runs)
    plain, coloured = printed(rows, width), printed(rows, width, force_terminal=True, color_system="truecolor")

    assert controls(plain) == []
    assert controls(STYLE.sub("", coloured)) == []
    assert STYLE.sub("", coloured) == plain


def test_the_check_of_the_terminal_can_fail():
    assert controls("\x1b[31mred") == ["\x1b"]
    assert controls(STYLE.sub("", "\x1b[2Jred")) == ["\x1b"]


@given(runs=st.lists(st.text(max_size=60), min_size=1, max_size=4), width=st.integers(4, 60))
@settings(max_examples=50)
def test_no_line_is_wider_than_the_terminal(runs, width):
    assert max(cell_len(line) for line in printed(shown(*runs), width).splitlines()) <= width


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_does_not_print_appears_as_an_escape_and_all_else_as_it_is(hostile):
    (line,) = body(printed(shown(hostile)))

    assert line.strip() == printable(hostile)
    assert (printable(hostile) == hostile) == hostile.isprintable()


def test_escapes_are_these():
    assert printable("\x1b[31mb\t\u202e\U000e0001é") == r"\x1b[31mb\t\u202e\U000e0001é"


@pytest.mark.parametrize("width", [6, 11, 80])
def test_supervised_tokens_have_a_bar_in_any_width_and_without_colour(width):
    lines = printed(shown("asked by one", "answered by", "read on", "told"), width).splitlines()
    marked = "".join(line.removeprefix("▌ ").replace(" ", "") for line in lines if line.startswith("▌ "))
    others = "".join(line.replace(" ", "") for line in lines if line.startswith("  "))

    assert marked.endswith("answeredbytold")
    assert others.endswith("askedbyonereadon")


def test_a_lines_end_is_an_arrow_and_a_line():
    assert [line.rstrip() for line in body(printed(shown("one\n\ntwo", "three\n")))] == [
        "  one↵",
        "  ↵",
        "  two",
        "▌ three↵",
    ]


def test_seams_name_the_document_its_source_its_role_and_its_tokens():
    token = ShownToken(id=1, text="a", special=False, supervised=True)
    documents = tuple(
        ShownDocument(document=3, where="[b]evil\x1b.jsonl:7", role=role, tokens=(token, token))
        for role in ("chosen", "rejected")
    )
    rows = ShownRows(path="p", seed=0, rows_in_all=9, capacity=8, rows=(ShownRow(row=4, documents=documents),))
    lines = printed(rows, 120).splitlines()

    assert "row 4 of 9: 4 of 8 tokens, 2 documents" in lines
    assert r"── document 3, [b]evil\x1b.jsonl:7, chosen: 2 tokens, 2 supervised" in lines
    assert r"── document 3, [b]evil\x1b.jsonl:7, rejected: 2 tokens, 2 supervised" in lines


def test_shown_rows_as_json_are_the_rows_in_ascii(folder):
    rows = show_packed(folder, rows=2, tokenizer=DEMO_TOKENIZER)
    text = shown("\x1b[31m", "é").to_json()

    assert text.isascii()
    assert controls(text) == []
    values = json.loads(rows.to_json())
    assert [row["row"] for row in values["rows"]] == [row.row for row in rows.rows]
    token = rows.rows[0].documents[0].tokens[0]
    assert values["rows"][0]["documents"][0]["tokens"][0] == {
        "id": token.id,
        "text": token.text,
        "special": token.special,
        "supervised": token.supervised,
    }


def test_the_draw_covers_every_row(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [number, 5]} for number in range(5)])
    pack_sources(source, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=2)
    drawn = {row.row for seed in range(40) for row in show_packed(tmp_path / "packed", seed=seed).rows}

    assert drawn == set(np.arange(5).tolist())

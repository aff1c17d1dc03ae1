"""The drawings: cells of an SVG asserted one by one, contrast computed, hostile text harmless, every width fits."""

import importlib
import io
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from data_helpers import DEMO_TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import hermetic
from hermetic.errors import MissingDependencyError
from hermetic.show import figure
from hermetic.show.palette import DARK, LIGHT, style
from hermetic.show.terminal import lines
from hermetic.show.words import shortened

SVG = "{http://www.w3.org/2000/svg}"
GRID_LEFT, GRID_TOP, CELL = 52, 66, 34


def grids(markup):
    """For each mask of an SVG its cells by (query, key): the class and the words of every rectangle with words."""
    found = []
    for group in ET.fromstring(markup).iter(f"{SVG}g"):  # noqa: S314 - our own drawing
        ground = group.find(f"{SVG}rect")
        if group.get("transform") == f"translate({GRID_LEFT} {GRID_TOP})" and ground is not None:
            cells = [rect for rect in group.findall(f"{SVG}rect")[1:] if rect.find(f"{SVG}title") is not None]
            places = ((int(float(cell.get(axis)) // CELL) for axis in ("y", "x")) for cell in cells)
            looks = ((cell.get("class"), cell.findtext(f"{SVG}title")) for cell in cells)
            found.append(dict(zip(map(tuple, places), looks, strict=True)))
    return found


def own(query, key, document):
    return f"token {query} of document {document}, token {key} of document {document}: read, of its own document"


def leak(query, key):
    return f"token {query} of document 1, token {key} of document 0: leak: read, but of another document"


def test_the_cells_of_documents_of_2_and_3_tokens_are_these():
    right, plain = grids(hermetic.show([2, 3], backends=["causal"]).to_svg())
    expected = {
        (0, 0): ("d0", own(0, 0, 0)),
        (1, 0): ("d0", own(1, 0, 0)),
        (1, 1): ("d0", own(1, 1, 0)),
        (2, 2): ("d1", own(2, 2, 1)),
        (3, 2): ("d1", own(3, 2, 1)),
        (3, 3): ("d1", own(3, 3, 1)),
        (4, 2): ("d1", own(4, 2, 1)),
        (4, 3): ("d1", own(4, 3, 1)),
        (4, 4): ("d1", own(4, 4, 1)),
    }

    assert right == expected
    assert plain == expected | {(q, k): ("k-leak", leak(q, k)) for q in (2, 3, 4) for k in (0, 1)}


def test_what_is_lost_beyond_or_read_by_padding_has_a_look_of_its_own():
    inputs = {"input_ids": [[5, 6, 7, 8, 0]], "position_ids": [[3, 4, 0, 1, 0]], "labels": [[-100, 6, -100, 8, -100]]}
    drawn = grids(hermetic.show(inputs, backends=["transformers_flash"]).to_svg())[1]
    pairs = np.tril(np.ones((4, 4), dtype=bool))
    windowed = hermetic.show({"input_ids": [[5, 6, 7, 8]], "attention_mask": pairs[None, None]}, window=2)

    assert {place: look for place, (look, _) in drawn.items()} == {
        (0, 0): "k-lost", (1, 0): "k-lost", (1, 1): "k-lost",
        (2, 2): "d1", (3, 2): "d1", (3, 3): "d1", (4, 4): "k-idle",
    }  # fmt: skip
    assert [place for place, (look, _) in grids(windowed.to_svg())[3].items() if look == "k-beyond"] == [
        (2, 0), (3, 0), (3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", [[1], [2, 3], [30, 34], [65], [100, 1, 500], [3, 0, 2]])
def test_a_drawing_is_xml_with_title_and_description_and_asks_for_nothing(lengths):
    picture = hermetic.show(lengths)
    root = ET.fromstring(picture.to_svg())  # noqa: S314 - our own drawing

    assert root.findtext(f"{SVG}title").endswith("tokens") or lengths == [1]
    assert root.findtext(f"{SVG}desc").startswith("Each line of a grid is a token.")
    for markup in (picture.to_svg(), figure(picture)):
        assert set(re.findall(r"https?://[^\s\"]+", markup)) <= {"http://www.w3.org/2000/svg"}
        assert re.search(r"<script|@import|<image|href=|\son\w+=", markup) is None
        assert "prefers-color-scheme:dark" in markup
    assert picture._repr_html_() == figure(picture)
    ET.fromstring(figure(picture))  # noqa: S314 - our own drawing


def test_two_pictures_on_a_page_do_not_share_the_names_of_their_patterns():
    pages = [figure(hermetic.show(lengths)) for lengths in ([2, 3], [3, 2], [2, 3])]
    names = [re.findall(r'id="([^"]+)"', page) for page in pages]

    assert len(names[0]) == 4
    assert not set(names[0]) & set(names[1])
    assert names[0] == names[2]
    assert all(set(re.findall(r"url\(#([^)]+)\)", page)) <= set(own_) for page, own_ in zip(pages, names, strict=True))


HOSTILE = ["</text><script>alert(1)</script>", '"onload="x', "\x1b[31mred", "[bold]loud", "\u202egnp", "a\nb", "&amp;"]


def with_texts(texts):
    """A picture whose tokens have these texts."""
    batch = hermetic.collate([{"input_ids": list(range(len(texts)))}])
    return replace(hermetic.show(batch), texts=tuple(texts), subject="".join(texts))


def test_hostile_text_is_only_text_in_every_form(tmp_path):
    picture = with_texts(HOSTILE)
    for markup in (picture.to_svg(), figure(picture)):
        root = ET.fromstring(markup)  # noqa: S314 - our own drawing
        assert not [one for one in root.iter() if one.tag.endswith("script") or "onload" in one.attrib]
        assert "\x1b" not in markup
        assert "\u202e" not in markup
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(picture)
    assert "[bold]loud" in console.file.getvalue()
    assert not set("\x1b\u202e") & set(console.file.getvalue())
    picture.to_png(tmp_path / "hostile.png")  # a warning of matplotlib would be an error


def test_a_long_text_is_cut_and_spaces_are_shown():
    assert shortened(" the end\n") == "␣the␣end↵"
    assert shortened("a" * 40) == "a" * 11 + "…"


def contrast(one, other):
    """WCAG 2.2: the ratio of the relative luminances of two colours."""

    def luminance(colour):
        parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_fills_stand_out_by_3_to_1_and_text_by_4_5_to_1(theme):
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for fill in ("d0", "d1", "d2", "many", "pad", "leak", "beyond"):
        assert contrast(theme[fill], theme["paper"]) >= 3, fill
    for text, ground in [
        *((f"on-{fill}", fill) for fill in ("d0", "d1", "d2", "pad")),
        ("ink", "paper"),
        ("soft", "paper"),
    ]:
        assert contrast(theme[text], theme[ground]) >= 4.5, text
    assert contrast(theme["leak"], theme["paper"]) >= 4.5  # it colours words, too
    assert contrast(theme["on-leak"], theme["leak"]) >= 3
    assert contrast(theme["on-beyond"], theme["beyond"]) >= 3


def test_both_themes_have_the_same_colours_and_the_style_uses_no_other():
    assert LIGHT.keys() == DARK.keys()
    assert set(re.findall(r"var\(--([\w-]+)\)", style())) <= LIGHT.keys()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), st.integers(40, 160), st.booleans())
@settings(max_examples=30, deadline=None)
def test_no_line_of_a_terminal_is_wider_than_its_window(lengths, width, padded):
    batch = hermetic.collate([{"input_ids": [7] * length} for length in lengths], pad_to_multiple=8 if padded else None)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(hermetic.show(batch))

    assert max(map(cell_len, console.file.getvalue().splitlines())) <= width


def test_a_terminal_that_knows_only_ascii_gets_only_ascii():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=stream, width=100).print(hermetic.show([70, 30]))
    stream.flush()

    assert b"X X" in stream.buffer.getvalue()


def test_colours_say_nothing_that_characters_do_not_say():
    coloured = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    plain = Console(file=io.StringIO(), width=100, color_system=None)
    for console in (coloured, plain):
        console.print(hermetic.show([2, 3]))

    assert "\x1b[" in coloured.file.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.file.getvalue()) == plain.file.getvalue()


@pytest.mark.parametrize("lengths", [[2, 3], [300, 0, 724]])
def test_a_png_file_is_written_whole_and_shows_the_leak_in_its_colour(tmp_path, lengths):
    image = importlib.import_module("matplotlib.image")
    hermetic.show(lengths, backends=["causal"]).to_png(tmp_path / "row.png")
    hermetic.show(lengths, backends=[]).to_png(tmp_path / "sound.png")
    leak_colour = np.array([int(LIGHT["leak"][place : place + 2], 16) for place in (1, 3, 5)])

    def pixels(name):
        read = (image.imread(tmp_path / name)[..., :3] * 255).round()
        return int((np.abs(read - leak_colour).max(axis=2) <= 1).sum())

    assert pixels("row.png") > 1000
    assert pixels("sound.png") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.png", "sound.png"]


def test_a_png_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hermetic\[report\]'"):
        hermetic.show([2, 3]).to_png(tmp_path / "row.png")

    assert list(tmp_path.iterdir()) == []


def test_the_legend_of_blocks_has_every_character_that_stands_for_a_part_of_one():
    long, short = hermetic.show([40, 60]), hermetic.show([2, 3])
    unicode_lines = [line.plain for line in lines(long, width=100, ascii_only=False)]

    assert "█ ▒ ░ read, of its own document: all of a block, half of it or more, less than half" in unicode_lines
    assert "# = - read, of its own document: all of a block, half of it or more, less than half\n" in long.text()
    assert "X x leak: read, but of another document: all of a block, a part of it\n" in long.text()
    assert "\n# read, of its own document\nX leak: read, but of another document\n" in short.text()
    assert "\n# = - read" in hermetic.show([20, 30]).text(width=30)  # too narrow for cells


def test_a_tokenizer_that_is_not_used_is_told_in_a_note():
    tokens = [{"input_ids": list(range(3, 3 + length))} for length in (30, 40)]
    long, short = hermetic.collate(tokens), hermetic.collate(tokens[:1])

    (note,) = hermetic.show(long, tokenizer=DEMO_TOKENIZER).notes
    assert note.startswith("the tokenizer is not used: texts are shown of rows of up to 64 slots, and this one has 70.")
    assert hermetic.show(short, tokenizer=DEMO_TOKENIZER).notes == hermetic.show(long).notes == ()
    (note,) = hermetic.show([2, 3], tokenizer=DEMO_TOKENIZER).notes
    assert note == "the tokenizer is not used: there are no tokens here that have a text"

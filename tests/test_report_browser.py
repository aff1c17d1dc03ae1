"""Every page as Chromium shows it, light and dark, on a phone and on a screen; and each check is shown to fail."""

import os
from pathlib import Path

import browser
import pytest
from data_helpers import DEMO_TOKENIZER, demo_tokenizer, write_jsonl
from pages import HOSTILE
from reports import PAGES, a_finding, an_audit
from test_report_pages import chat

from hermetic.data import pack_sources
from hermetic.report import audit_page, pack_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

THEMES = {"light": False, "dark": True}
WIDTHS = (360, 1280)


@pytest.fixture(scope="module")
def chromium():
    if browser.chromium() is None:
        pytest.fail(browser.MISSING, pytrace=False)
    with browser.running() as running:
        yield running


@pytest.fixture(scope="module")
def artefacts(request, tmp_path_factory):
    """Where pages and their pictures stay: HERMETIC_ARTEFACTS, or a folder of this run."""
    named = os.environ.get("HERMETIC_ARTEFACTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("artefacts")
    folder.mkdir(parents=True, exist_ok=True)
    request.config.get_terminal_writer().line(f"pages and pictures: {folder}")
    return folder.resolve()


@pytest.fixture(scope="module")
def place(chromium, artefacts):
    return chromium, artefacts


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    place = tmp_path_factory.mktemp("packed")
    records = [chat("What is 2 plus 3? " * (1 + at % 7)) for at in range(60)] + [chat("long " * 300)]
    source = write_jsonl(place / "chats.jsonl", records)
    pack_sources([source], place / "rows", tokenizer=DEMO_TOKENIZER, capacity=256, on_overflow="drop")
    return pack_page(place / "rows", tokenizer=demo_tokenizer())


def page_of(kind, pack):
    return pack if kind == "pack" else PAGES[kind]()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [*PAGES, "pack"])
def test_a_reader_meets_the_verdict_first_and_can_read_and_reach_everything(place, pack, kind, width, theme):
    chromium, artefacts = place
    name = f"{kind.replace(' ', '_')}-{width}-{theme}"
    path, picture = artefacts / f"{name}.html", artefacts / f"{name}.png"
    path.write_text(page_of(kind, pack), encoding="utf-8")
    seen = browser.look_at(chromium, path, width=width, dark=THEMES[theme], picture=picture)

    assert seen.objections == []
    assert seen.texts > 5
    assert seen.stops >= 1  # the way past the list of sections
    assert seen.pictures >= {"audit": 0, "audit of nothing": 0, "compare": 1, "probe": 3}.get(kind, 5)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_tables_of_a_comparison_are_whole_on_a_screen(chromium, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGES["compare"]())
    cut = "[...document.querySelectorAll('main section > .scroll')].map(one => one.scrollWidth - one.clientWidth)"
    beyond = {}
    for width in WIDTHS:
        page = chromium.new_page(viewport={"width": width, "height": 800})
        page.goto(path.as_uri())
        beyond[width] = page.evaluate(cut)
        page.close()
    assert beyond[1280] == [0, 0]
    assert min(beyond[360]) > 0  # a table that is cut off is seen


@pytest.mark.parametrize("kind", [*PAGES, "many"])
def test_hostile_text_and_ten_thousand_findings_neither_run_nor_break_the_page(chromium, tmp_path, kind):
    path = tmp_path / "page.html"
    many = tuple(a_finding(HOSTILE, code=f"HM{at % 900 + 100}", way_out=f"{at}") for at in range(10_000))
    path.write_text(audit_page(an_audit(HOSTILE, findings=many)) if kind == "many" else PAGES[kind](HOSTILE))
    assert browser.look_at(chromium, path, width=360).objections == []


LOST = (
    '<svg role="img" aria-label="a" width="100" height="30"><rect width="100" height="30" style="fill:red"/>'
    '<text x="2" y="20" style="fill:red">on its own</text></svg>'
)
SMALL = (
    '<svg role="img" aria-label="a" width="50" height="15" viewBox="0 0 200 60">'
    '<text x="2" y="40" style="font-size:14px;fill:black">small</text></svg>'
)
PLANTED = {
    "console error: planted": ('<script>console.error("planted")</script>', 360),
    "page error: planted": ('<script>throw "planted"</script>', 360),
    "request": ('<img alt="there" src="other.png"/>', 360),
    "contrast 2.85": ('<p style="color:#999">pale</p>', 1280),
    'contrast 1.00 of "on its own"': (LOST, 1280),
    "letters of 3.5 pixels": (SMALL, 1280),
    "2000 wide in 360": ('<div style="width:2000px;margin-left:-16px">wide</div>', 360),
    "a picture without a name": ('<svg role="img" width="9" height="9"><rect width="9" height="9"/></svg>', 360),
    "Tab does not come to <a": ('<a href="#details" tabindex="-1">lost</a>', 360),
    "the verdict is not in the first view": ('<div style="height:900px"></div>', 360),
    "the paper is": ("<style>body { background: #777 !important }</style>", 1280),
}


@pytest.mark.parametrize("objection", PLANTED)
def test_each_check_of_the_browser_can_fail(chromium, tmp_path, objection):
    markup, width = PLANTED[objection]
    clean, planted = tmp_path / "clean.html", tmp_path / "planted.html"
    text = audit_page(an_audit())
    clean.write_text(text)
    planted.write_text(text.replace('<a class="skip"', f'{markup}<a class="skip"', 1))
    assert browser.look_at(chromium, clean, width=width).objections == []
    found = browser.look_at(chromium, planted, width=width).objections
    assert any(one.startswith(objection) for one in found), found


def test_without_a_chromium_there_is_a_plain_message(monkeypatch):
    monkeypatch.delenv("HERMETIC_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    assert browser.chromium() is None
    monkeypatch.setenv("HERMETIC_CHROMIUM", "/somewhere/chrome")
    assert browser.chromium() == "/somewhere/chrome"

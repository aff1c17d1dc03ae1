"""The documentation site builds without a warning, and its pages ask for nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"(https?:[^\"]+)|<link[^>]* href=\"(https?:[^\"]+)")


def build(folder, out):
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]  # --quiet counts no warning
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def fetched(page):
    """Addresses that a browser would fetch when it opens the page."""
    return [one or other for one, other in FETCHED.findall(page)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    return build(ROOT, out), out


def test_every_page_builds_without_a_warning(site):
    built, out = site

    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    sources = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    pages = {page.relative_to(out) for page in out.rglob("index.html")}
    assert len(pages) == len(sources)


def test_no_page_fetches_anything_from_another_site(site):
    _, out = site

    assert {page: found for page in out.rglob("*.html") if (found := fetched(page.read_text("utf-8")))} == {}


def test_a_page_with_a_broken_link_does_not_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: broken\n")

    built = build(tmp_path, tmp_path / "out")

    assert built.returncode != 0
    assert "nowhere.md" in built.stderr


def test_what_a_page_fetches_is_seen():
    assert fetched('<script defer src="https://cdn.example/x.js"></script><a href="https://example.org">') == [
        "https://cdn.example/x.js"
    ]

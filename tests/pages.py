"""What every page has to be as a file of its own, read by a strict parser; shared by the tests of pages."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' & \x00\x1b[31m \ud800 \u202e \u2066 ]]> é"

SHOWN = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' & \ufffd\ufffd[31m \ufffd \ufffd \ufffd ]]> é"
)
"""How ``HOSTILE`` has to stand on a page."""


def parsed(text):
    """The page as a strict XML parser reads it."""
    return ET.fromstring(text)  # noqa: S314 - our own page


def text_of(page):
    """All text of a page, style left out."""
    root = parsed(page)
    for parent in [*root.iter()]:
        for style in parent.findall("style"):
            style.text = ""
    return "".join(root.find("body").itertext())


def objections(text):
    """What is wrong with a page: references, scripts, double ids, numbers that are none, what nobody can hear."""
    root = parsed(text)
    return [*_references(root, text), *_numbers(root), *_hearing(root)]


def _references(root, text):
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "input", "use", "image"}
    found = [f"element {e.tag}" for e in root.iter() if e.tag in forbidden]
    found += [f"{name} of {e.tag}" for e in root.iter() for name in e.attrib if name == "src" or name[:2] == "on"]
    targets = [e.get("href") for e in root.iter() if e.get("href")]
    found += [f"href {target}" for target in targets if target[:1] != "#"]
    found += [f"url {target}" for target in re.findall(r"url\(([^)]*)\)|@import|https?:", text) if target[:1] != "#"]
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    found += [f"id {one}" for one in ids if ids.count(one) > 1]
    named = [*re.findall(r"url\(#([^)]*)\)", text), *(target[1:] for target in targets if target[:1] == "#")]
    named += [e.get("aria-labelledby") for e in root.iter() if e.get("aria-labelledby")]
    return found + [f"no id {one}" for one in named if one not in ids]


def _numbers(root):
    drawn = ("x", "y", "width", "height", "cx", "cy", "r", "x1", "x2", "y1", "y2")
    numbers = [(svg, e, name) for svg in root.iter("svg") for e in svg.iter() for name in drawn if name in e.attrib]
    lowest = {svg: -10_000 if any("transform" in e.attrib for e in svg.iter()) else 0 for svg in root.iter("svg")}
    found = [f"{name} of {e.tag}" for svg, e, name in numbers if not lowest[svg] <= float(e.get(name)) < 10_000]
    return found + [f"nan in {e.tag}" for svg in root.iter("svg") for e in svg.iter() if "nan" in e.get("d", "")]


def _hearing(root):
    found = [] if root.get("lang") else ["no language"]
    found += [
        "svg without a name"
        for svg in root.iter("svg")
        if svg.get("aria-hidden") != "true" and not (svg.get("role") == "img" and svg.get("aria-label"))
    ]
    levels = [int(e.tag[1]) for e in root.iter() if re.fullmatch("h[1-6]", e.tag)]
    found += ["not one h1"] if levels.count(1) != 1 or levels[0] != 1 else []
    found += [f"h{after} after h{before}" for before, after in pairwise(levels) if after > before + 1]
    found += ["th without a scope" for th in root.iter("th") if th.get("scope") not in {"col", "row"}]
    scrolls = [e for e in root.iter() if "scroll" in (e.get("class") or "").split()]
    found += ["scroll area without a name" for e in scrolls if not e.get("aria-label") or e.get("role") != "region"]
    found += ["scroll area beyond the keyboard" for e in scrolls if e.get("tabindex") != "0"]
    tables = {id(table) for e in scrolls for table in e.iter("table")}
    return found + ["table that does not scroll" for table in root.iter("table") if id(table) not in tables]

"""A page in headless Chromium: what is wrong with it as a reader meets it, and a picture of it.

    python tests/browser.py        names the browser, or says that there is none and ends with 1

Playwright drives a Chromium that is there; nothing is downloaded, and the browser is told that it is offline.
"""

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "there is no Chromium: none of chromium, chromium-browser and google-chrome is on the PATH, and HERMETIC_CHROMIUM "
    "is not set. Install one, or set HERMETIC_CHROMIUM to its executable"
)


def chromium():
    """The executable, or None."""
    named = os.environ.get("HERMETIC_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was wrong, and what was looked at, so that an empty list means something."""

    objections: list
    texts: int
    """Pieces of text whose contrast was computed."""
    stops: int
    """Places that the Tab key came to."""
    pictures: int
    """Pictures that have a name in the accessibility tree."""


@contextmanager
def running():
    """A browser for several pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]
        )
        try:
            yield browser
        finally:
            browser.close()


def look_at(browser, path, *, width, dark=False, picture=None):
    """Load a page in a window of ``width`` by 800 pixels and check it.

    Args:
        browser: from :func:`running`.
        path: of the page.
        width: of the window in pixels.
        dark: whether the reader prefers a dark page.
        picture: where to write a picture of the whole page.
    """
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
    try:
        context.set_offline(True)
        page = context.new_page()
        page.set_default_timeout(60_000)
        heard = _listen(page)
        page.goto(path.as_uri())
        if picture is not None:
            page.screenshot(path=picture, full_page=True)
        found = page.evaluate(_LOOK)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        contrast = page.evaluate(_CONTRAST)
        stops, missed = _tabs(page)
        named, nameless = _pictures(context, page)
        asked = [f"request {url}" for url in heard.requests if url != path.as_uri()]
        return Seen(
            objections=[*heard.said, *asked, *found, *contrast["found"], *missed, *nameless],
            texts=contrast["count"],
            stops=stops,
            pictures=named,
        )
    finally:
        context.close()


@dataclass(frozen=True, kw_only=True)
class _Heard:
    said: list
    requests: list


def _listen(page):
    heard = _Heard(said=[], requests=[])
    page.on("console", lambda message: heard.said.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.said.append(f"page error: {error}"))
    page.on("request", lambda request: heard.requests.append(request.url))
    return heard


_LOOK = """() => {
  const found = [];
  const word = document.querySelector(".verdict .word");
  const box = word && word.getBoundingClientRect();
  const seen = box && word.checkVisibility({opacityProperty: true, visibilityProperty: true});
  if (!seen || !word.textContent.trim() || box.height < 20 || box.top < 0 || box.bottom > innerHeight)
    found.push("the verdict is not in the first view");
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`${root.scrollWidth} wide in ${root.clientWidth}`);
  const theme = matchMedia("(prefers-color-scheme: dark)").matches;
  const paper = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  if (theme ? Math.max(...paper) > 40 : Math.min(...paper) < 240) found.push(`the paper is ${paper}`);
  return found;
}"""

# Every visible text, against the colours that lie beneath it, by the formula of WCAG 2.
_CONTRAST = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const colour = text => { const [r, g, b, a = 1] = numbers(text); return [r, g, b, a]; };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ratio = (a, b) => {
    const [dark, bright] = [light(a), light(b)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05);
  };
  const opacity = element => {
    let product = 1;
    for (let one = element; one; one = one.parentElement) product *= Number(getComputedStyle(one).opacity);
    return product;
  };
  const behind = element => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(colour(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const shapes = new Set(["rect", "path", "circle", "polygon"]);
  const beneath = (text, x, y) => {  // the colours of the shapes of the same picture, from the lowest up
    const picture = text.ownerSVGElement;
    const hit = document.elementsFromPoint(x, y);
    const under = hit.slice(hit.indexOf(text) + 1).filter(one => shapes.has(one.tagName) && picture.contains(one));
    const paints = under.map(one => getComputedStyle(one)).filter(one => one.fill.startsWith("rgb"));
    const colours = paints.map(one => { const c = colour(one.fill); c[3] *= one.fillOpacity * one.opacity; return c; });
    return colours.reverse().reduce((below, layer) => over(layer, below), behind(picture.parentElement));
  };
  const found = [];
  let count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || ["STYLE", "title", "desc"].includes(parent.tagName)) continue;
    if (!parent.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const style = getComputedStyle(parent);
    const svg = parent.closest("svg");
    let ground = svg ? null : behind(parent);
    if (svg) {
      parent.scrollIntoView({block: "center", inline: "center"});
      const now = range.getBoundingClientRect();
      ground = beneath(parent.closest("text"), now.x + now.width / 2, now.y + now.height / 2);
    }
    const ink = colour(svg ? style.fill : style.color);
    ink[3] *= opacity(parent);
    const scale = svg ? box.height / Math.max(1, parent.closest("text").getBBox().height) : 1;
    const size = parseFloat(style.fontSize) * scale;
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = ratio(over(ink, ground), ground);
    const said = node.data.trim().slice(0, 40);
    count += 1;
    if (contrast < (large ? 3 : 4.5))
      found.push(`contrast ${contrast.toFixed(2)} of "${said}"`);
    if (size < 7.5) found.push(`letters of ${size.toFixed(1)} pixels: "${said}"`);
  }
  scrollTo(0, 0);
  return {found, count};
}"""

_STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter(one => one.tagName !== "MAIN" && one.checkVisibility())"""


def _tabs(page):
    """How many places the Tab key comes to, and those that it does not."""
    count = page.evaluate(f"({_STOPS})().length")
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(count + 3):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(f"({_STOPS})().indexOf(document.activeElement)"))
        if len(reached - {-1}) == count:
            break
    names = page.evaluate(f"({_STOPS})().map(one => one.outerHTML.slice(0, 60))")
    return len(reached - {-1}), [f"Tab does not come to {names[at]}" for at in range(count) if at not in reached]


def _pictures(context, page):
    """Pictures that have a name, and those that have none, as a screen reader is told."""
    session = context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    kinds = {"image", "img", "SvgRoot", "graphics-document"}
    pictures = [n for n in nodes if not n["ignored"] and n.get("role", {}).get("value") in kinds]
    nameless = [n for n in pictures if not n.get("name", {}).get("value", "").strip()]
    return len(pictures) - len(nameless), [f"a picture without a name ({n['role']['value']})" for n in nameless]


if __name__ == "__main__":
    sys.exit(MISSING if chromium() is None else None)

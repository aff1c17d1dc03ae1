"""Show a page in Chromium without a window and print, as JSON, what is on it and what it asked for.

    python tests/browser.py PAGE WIDTH light|dark [PICTURE]

A process of its own, for a browser engine changes signal handlers and ends where it likes. Needs PyQt6-WebEngine.
"""

import json
import os
import sys
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"  # the page is our own, and the sandbox does not run as root
page, width, theme, picture = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = (
    f"--disable-gpu --blink-settings=preferredColorScheme={int(theme == 'light')}"
)

from PyQt6.QtCore import QTimer, QUrl  # noqa: E402 - the engine reads its environment when it is imported
from PyQt6.QtWebEngineCore import QWebEngineUrlRequestInterceptor  # noqa: E402
from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PyQt6.QtWidgets import QApplication  # noqa: E402

MEASURE = """JSON.stringify({
  scroll_width: document.documentElement.scrollWidth,
  client_width: document.documentElement.clientWidth,
  headings: [...document.querySelectorAll("h2")].map(heading => heading.textContent),
  background: getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number),
  squares: ["z", "n", "a6", "b0", "b6"].map(look => {
    const square = document.querySelector(`figure rect.${look}`);
    return [square === null ? "none" : getComputedStyle(square).fill];
  }),
})"""


class Requests(QWebEngineUrlRequestInterceptor):
    """Remembers every address that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def interceptRequest(self, info) -> None:  # noqa: N802 - Qt names it
        self.asked.append(info.requestUrl().toString())


def main() -> None:
    application, requests = QApplication(sys.argv[:1]), Requests()
    view = QWebEngineView()
    view.page().profile().setUrlRequestInterceptor(requests)
    view.resize(width, 1500)
    view.show()

    def report(measured: str) -> None:
        if picture:
            view.grab().save(picture)
        print(json.dumps({**json.loads(measured), "requests": requests.asked}))  # noqa: T201 - what is asked for
        application.quit()

    def measure() -> None:
        view.page().runJavaScript(MEASURE, report)

    view.loadFinished.connect(lambda _: QTimer.singleShot(500, measure))  # painting follows loading
    view.load(QUrl.fromLocalFile(str(Path(page).resolve())))
    application.exec()


main()

"""Pages in a headless Chromium, and what every page must keep to.

Law: a page asks nobody but the server that it came from, and the browser has nothing to complain
about: no error of a script, no line in the console, no breach of the page's own policy, no dialog.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

TOOL = Path(__file__).parents[1] / "tools" / "ensure-chromium"
#: CSS pixels: a small laptop, and a phone.
WIDE, PHONE = (1200, 900), (400, 850)


def system_chromium():
    """The path of the system's Chromium; None: there is none."""
    found = subprocess.run([TOOL, "--find"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@contextmanager
def started(program):
    """A browser of the system's Chromium; Playwright's own browsers are never fetched."""
    # Chromium's sandbox refuses root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@contextmanager
def shown(chromium, page, *, size=WIDE, dark=False, **context):
    """A tab that shows a page, a file or a URL, for as long as the block runs; checks the law."""
    url = page.as_uri() if isinstance(page, Path) else page
    width, height = size
    scheme = "dark" if dark else "light"
    inside = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **context
    )
    tab = inside.new_page()
    complaints = _complaints(tab, urlsplit(url))
    tab.goto(url)
    yield tab
    inside.close()
    assert complaints == []


def _complaints(tab, home):
    found = []

    def request(asked):
        where = urlsplit(asked.url)
        if where.scheme not in {"data", "blob"} and where[:2] != home[:2]:
            found.append(f"request: {asked.url}")

    def dialog(one):
        found.append(f"dialog: {one.message}")
        one.dismiss()

    tab.on("request", request)
    tab.on("dialog", dialog)
    tab.on("pageerror", lambda error: found.append(f"error: {error}"))
    tab.on("console", lambda line: found.append(f"console: {line.text}"))
    return found

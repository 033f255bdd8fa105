"""Shows pages in a headless Chromium, and checks the law of every page.

Law: a page makes requests only to the server that it came from, and the browser reports nothing: no
error of a script, no line in the console, no breach of the page's own policy, no dialog.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

TOOL = Path(__file__).parents[1] / "tools" / "ensure-chromium"
#: The least contrast of a text with its background (WCAG 2.2, AA).
CONTRAST = 4.5
#: Each text that can be seen, with its contrast by the formula of WCAG 2.2.
_CONTRASTS = """() => {
    const part = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const blend = (colours) => {
        for (const colour of colours) {
            pen.fillStyle = colour;
            pen.fillRect(0, 0, 1, 1);
        }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255);
    };
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode.data.trim(), inside = texts.currentNode.parentElement;
        if (!text || !inside.checkVisibility({ visibilityProperty: true })) continue;
        const behind = [];
        for (let one = inside; one; one = one.parentElement) {
            behind.unshift(getComputedStyle(one).backgroundColor);
        }
        const style = getComputedStyle(inside);
        const colour = inside instanceof SVGElement ? style.fill : style.color;
        const lights = [light(blend(behind)), light(blend([...behind, colour]))];
        found.push([text, (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05)]);
    }
    return found;
}"""
_SHADES = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""
#: CSS pixels: a small laptop, and a phone.
WIDE, PHONE = (1200, 900), (400, 850)


def system_chromium():
    """The path of the system's Chromium; None: there is none."""
    found = subprocess.run([TOOL, "--find"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@contextmanager
def started(program):
    """A browser: the system's Chromium; Playwright's own browsers are never downloaded."""
    # Chromium's sandbox refuses root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@contextmanager
def shown(chromium, page, *, size=WIDE, dark=False, but="", **context):
    """A tab that shows a page, a file or a URL, for as long as the block runs; checks the law.

    `but`: part of the complaints that are expected.
    """
    width, height = size
    scheme = "dark" if dark else "light"
    inside = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **context
    )
    with shown_in(inside.new_page(), page, but=but) as tab:
        yield tab
    inside.close()


@contextmanager
def shown_in(tab, page, *, but=""):
    """The same in a tab that is there; what it has shown before is gone."""
    url = page.as_uri() if isinstance(page, Path) else page
    with _complaints(tab, urlsplit(url)) as said:
        tab.goto(url)
        # The script unpacks the figures before it draws: a key pressed earlier has no effect.
        expect(tab.locator("[data-field=status]")).not_to_be_empty()
        yield tab
        tab.evaluate("0")  # complaints that are under way come before the answer
    assert [one for one in said if not but or but not in one] == []


@contextmanager
def _complaints(tab, home):
    said = []

    def request(asked):
        where = urlsplit(asked.url)
        if where.scheme not in {"data", "blob"} and where[:2] != home[:2]:
            said.append(f"request: {asked.url}")

    def dialog(asked):
        said.append(f"dialog: {asked.message}")
        asked.dismiss()

    listeners = {
        "request": request,
        "dialog": dialog,
        "pageerror": lambda error: said.append(f"error: {error}"),
        "console": lambda line: said.append(f"console: {line.text}"),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    yield said
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)


def faint_texts(tab):
    """The texts that can be seen but hardly read, with their contrasts; some text must be seen."""
    contrasts = tab.evaluate(_CONTRASTS)
    assert contrasts
    return [(text, round(found, 2)) for text, found in contrasts if found < CONTRAST]


def shades(canvas):
    """How many colours a canvas has: one if nothing is drawn in it."""
    return canvas.evaluate(_SHADES)

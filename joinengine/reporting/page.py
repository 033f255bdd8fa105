"""The page of a run: one HTML text that holds its style, its scripts and its figures.

Why: a page that is sent to somebody, or kept for a year, must open without a server, a build step
or the network. The live page is the same text without figures, which its script requests.

Law: nothing of a run becomes markup. Figures stand in a data block without any `<`, and scripts put
them into the document as text. The content policy allows only the one style and the one script, by
their hashes, and only the address of the page's own server.
Cost: the JSON of the reports, and from `PACKED_FROM` on its compression: a second for 15 MB.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from functools import cache
from importlib import metadata, resources
from typing import Any

#: The files of the folder `page`, in the order in which they run; all in one scope.
SCRIPTS = (
    *("words.js", "story.js", "charts.js", "bars.js", "state.js", "loads.js", "plans.js"),
    *("times.js", "time.js", "live.js", "compare.js", "page.js"),
)
#: Data of more characters is compressed: the page of a benchmark holds a hundred stories.
PACKED_FROM = 2_000_000
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def page(content: dict[str, Any]) -> str:
    """The HTML text of the page.

    `content`: {"mode": "report", "reports": [report, ..], "verdict": [sentence, ..], "hues":
    {layout: number of its colour}}, with reports as `joinengine run --json` writes them
    (`docs/metrics.md`), an empty verdict if there is none, and hues if there are several reports.
    Or {"mode": "live", "story": story or None}: then the script listens to `events` beside the
    page's address. Any figure may be missing.

    >>> text = page({"mode": "report", "reports": [{"query": "</script>"}]})
    >>> text.count("</script>"), "default-src 'none'" in text
    (2, True)
    """
    style, script = _style(), _script()
    data, encoding = _data({"version": version_of("joinengine"), **content})
    parts = {
        "policy": _policy(style, script, is_live=content["mode"] == "live"),
        "title": html.escape(_title(content)),
        "style": style,
        "encoding": encoding,
        "data": data,
        "script": script,
    }
    # In one pass, so that a placeholder in the value of a key stays text.
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def _policy(style: str, script: str, *, is_live: bool) -> str:
    server = "'self'" if is_live else "'none'"
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_sha256(script)}'",
            f"style-src '{_sha256(style)}'",
            "img-src data:",
            f"connect-src {server}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _sha256(text: str) -> str:
    """The hash of an element's text, as content policies write it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _title(content: dict[str, Any]) -> str:
    stories = [report.get("query") for report in content.get("reports") or []]
    names = dict.fromkeys(str(name) for name in stories if name)
    # Names of folders may not be valid Unicode; Python reads such bytes as lone surrogates.
    return " · ".join([*names, "joinengine"]).encode(errors="replace").decode()


def _data(content: dict[str, Any]) -> tuple[str, str]:
    """The text of the data block, and the attribute that says how it is packed."""
    lean = dict(content)
    if content.get("reports"):
        lean["reports"] = [_lean(report) for report in content["reports"]]
    # In ASCII, so that no character of a key ends a line of a script or breaks the encoding.
    try:
        text = json.dumps(lean, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(lean), separators=(",", ":"), allow_nan=False)
    if len(text) < PACKED_FROM:
        return text.replace("<", "\\u003c"), ""
    # Without a time in it, equal reports make equal pages.
    packed = gzip.compress(text.encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode(), ' data-encoding="gzip"'


def _lean(report: dict[str, Any]) -> dict[str, Any]:
    """A report without the entries that its story repeats."""
    if not report.get("story"):
        return report
    joins = [
        {key: value for key, value in join.items() if not key.endswith("_by_batch")}
        for join in report.get("joins") or []
    ]
    return {**{key: value for key, value in report.items() if key != "batches"}, "joins": joins}


def _finite(value: Any) -> Any:
    """A JSON value with null in place of infinite numbers, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


@cache
def _style() -> str:
    return _asset("page.css") + _asset("compare.css")


@cache
def _script() -> str:
    ours = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{ours}\n}})();\n'


def _asset(name: str) -> str:
    """A file of the folder `page`."""
    return (resources.files("joinengine.reporting") / "page" / name).read_text(encoding="utf-8")


@cache
def version_of(package: str) -> str | None:
    """The version of an installed package, without loading it; None: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources, not installed
        return None

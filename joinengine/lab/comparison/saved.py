"""Reports as files: the JSON of `run`, `compare` and `make bench`, and the content of their page.

Why: a report may be read by another version of joinengine, on another machine, and after a copy
that cut it off. A report that cannot be shown is refused in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joinengine.lab.comparison.hues import hues_of
from joinengine.lab.comparison.verdicts import verdict
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.run_report import FORMAT
from joinengine.reporting.story import LIMIT_BYTES
from joinengine.reporting.thinning import Entry, halved, size_of

#: Bytes of all stories of a page as JSON, which the page packs into less than a third of it.
_ROOM_BYTES = 3 * LIMIT_BYTES
#: How many keys per batch, and plans, a story keeps if it exceeds its part of the room.
_MOST_HOT, _MOST_PLANS = 8, 100
#: If the parser fails this close to the end, the file was cut off, inside a word or an escape.
_LAST_CHARACTERS = 6
#: Deeper than any report is nested; Python's stack does not allow much more.
_DEEPEST = 50
_WRITE_IT = "give a file that --json of `joinengine run` or `compare` wrote"


def comparison(name: str, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON of a comparison."""
    sentences = verdict(reports)
    return {"format": FORMAT, "query": name, "runs": list(reports), "verdict": sentences}


def page_content(report: dict[str, Any]) -> dict[str, Any]:
    """The content of the page of a report; for a comparison, of all its runs and its verdict.

    For several runs it also has the numbers of their layouts' colours. The stories of many runs
    share the room of a few.
    """
    runs = report.get("runs", [report])
    limit = _ROOM_BYTES // len(runs)
    stories = [run | {"story": _fitting(run, limit)} for run in runs]
    content: dict[str, Any] = {"mode": "report", "reports": stories}
    if len(runs) > 1:
        content["hues"] = hues_of(str(run["layout"]) for run in runs)
    return content | ({"verdict": report["verdict"]} if report.get("verdict") else {})


def read_report(path: Path) -> dict[str, Any]:
    """The report in a file.

    Raises InvalidRequest if the file has no report, or none that this version can show.
    """
    report: dict[str, Any] = _parsed(path, _text(path))
    runs = report.get("runs", [report]) if isinstance(report, dict) else None
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise _no_report(path)
    for saved in (report, *runs):
        _check_format(path, saved.get("format", 1))
    for run in runs:
        if not _is_story(run.get("story")):
            raise InvalidRequest(
                f"report: {path} lacks the story of the run under layout {run.get('layout')}; "
                f"run it again with --json"
            )
    return report


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except FileNotFoundError:
        raise InvalidRequest(f"report: {path} does not exist; {_WRITE_IT}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"report: {path} cannot be read ({reason}); {_WRITE_IT}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"report: {path} is not JSON, but binary; {_WRITE_IT}") from None
    if not text.strip():
        raise InvalidRequest(f"report: {path} is empty; {_WRITE_IT}")
    return text


def _parsed(path: Path, text: str) -> Any:
    try:
        # Browsers know no NaN and no Infinity, which Python writes.
        content = json.loads(text, parse_constant=lambda _: None)
        json.dumps(content, ensure_ascii=False).encode()  # half a character cannot be shown
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        # For an open text, the error is at its first quote; otherwise, where the parser stopped.
        open_text = error.msg.startswith("Unterminated string")
        near = len(text.rstrip()) - error.pos < _LAST_CHARACTERS and error.msg != "Extra data"
        if error.pos and (open_text or near):
            raise InvalidRequest(
                f"report: {path} is cut off at {at}; copy it again, or run the query again with "
                f"--json"
            ) from None
        raise InvalidRequest(
            f"report: {path} is not valid JSON at {at} ({error.msg}); {_WRITE_IT}"
        ) from None
    except (RecursionError, ValueError):  # nested too deep; a number too long; half a character
        raise _no_report(path) from None
    if _depth(content) > _DEEPEST:
        raise _no_report(path)
    return content


def _depth(value: Any) -> int:
    """How many lists and objects lie in each other; without recursion."""
    level: list[Any] = [[value]]
    depth = 0
    while level := [
        part
        for nested in level
        for part in (nested.values() if isinstance(nested, dict) else nested)
        if isinstance(part, dict | list)
    ]:
        depth += 1
    return depth


def _is_run(value: Any) -> bool:
    """Whether it looks like the report of a run, of any version."""
    if not (isinstance(value, dict) and {"query", "layout", "joins"} <= set(value)):
        return False
    return value["joins"] is None or _are_objects(value["joins"])


def _is_story(value: Any) -> bool:
    """Whether it has batches, and each of them figures of operators."""
    if not (isinstance(value, dict) and _are_objects(value.get("batches"))):
        return False
    return all(_are_objects(entry.get("joins")) for entry in value["batches"])


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(member, dict) for member in value)


def _check_format(path: Path, kind: Any) -> None:
    """Raise InvalidRequest unless `kind` is the format of this version."""
    if not isinstance(kind, int) or isinstance(kind, bool) or kind < 1:
        raise _no_report(path)
    if kind < FORMAT:
        raise InvalidRequest(
            f"report: {path} is from an older version of joinengine: expected format {FORMAT}, "
            f"found {kind}. Run the query again with --json"
        )
    if kind > FORMAT:
        raise InvalidRequest(
            f"report: {path} is from a newer version of joinengine: expected format {FORMAT}, "
            f"found {kind}. Install that version"
        )


def _no_report(path: Path) -> InvalidRequest:
    return InvalidRequest(f"report: {path} is JSON, but not the report of a run; {_WRITE_IT}")


def _fitting(run: dict[str, Any], limit: int) -> Entry:
    """The story of a run, thinned if need be. Raises InvalidRequest if that is impossible."""
    try:
        return _thinned(run["story"], limit)
    except (AttributeError, KeyError, TypeError, ValueError):  # a file was changed by hand
        raise InvalidRequest(
            f"report: the story of the run under layout {run.get('layout')} is too large for a "
            f"page and lacks the figures to shorten it; run it again with --json"
        ) from None


def _thinned(story: Entry, limit: int) -> Entry:
    """The story; if it is larger than `limit`, with fewer hot keys, plans and batches."""
    if size_of(story) <= limit:
        return story
    entries = [
        entry | {"joins": [j | {"hot": (j.get("hot") or [])[:_MOST_HOT]} for j in entry["joins"]]}
        for entry in story["batches"]
    ]
    each, plans = story.get("batches_per_entry") or 1, story.get("plans") or []
    while len(entries) > 1 and sum(map(size_of, entries)) > limit:
        entries = halved(entries)
        each *= 2
    kept = plans[-_MOST_PLANS:]
    left_out = (story.get("plans_left_out") or 0) + len(plans) - len(kept)
    thinned = {"batches": entries, "batches_per_entry": each, "plans": kept}
    return story | thinned | {"plans_left_out": left_out}

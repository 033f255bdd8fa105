"""Merges two entries of a story into one: adds up counts, and keeps the later state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from joinengine.driver.figures import SUMS

Entry = dict[str, Any]

_SUMS = (
    *("input_rows", "output_rows", "elapsed_s", "late_rows", "null_rows", "ahead_rows"),
    "skipped_files",
)
_GREATEST = ("latency_p50", "latency_p99")
_JOIN_SUMS = (*SUMS, "tuples", "greatest")


def merged(a: Entry, b: Entry) -> Entry:
    """Two neighbouring entries as one."""
    joins = [_merged_join(*both) for both in zip(a["joins"], b["joins"], strict=True)]
    return {
        "first": a["first"],
        "last": b["last"],
        "at": a["at"],
        **{name: round(_sum(a, name) + _sum(b, name), 6) for name in _SUMS},
        "steps": _added_up(a["steps"], b["steps"]),
        "work": _added_up(a["work"], b["work"]),
        **{name: _greater(a[name], b[name]) for name in _GREATEST},
        **{name: b.get(name) for name in ("behind_rows", "behind")},
        "joins": joins,
    }


def halved(entries: Sequence[Entry]) -> list[Entry]:
    """Neighbouring entries merged, two by two."""
    pairs = zip(entries[::2], [*entries[1::2], None], strict=False)
    return [a if b is None else merged(a, b) for a, b in pairs]


def _merged_join(a: Entry, b: Entry) -> Entry:
    hashes = None
    if a["hash_greatest"] is not None and b["hash_greatest"] is not None:
        hashes = a["hash_greatest"] + b["hash_greatest"]
    tuples = a["tuples"] + b["tuples"]
    return {
        **b,
        "received": _lists_added(a["received"], b["received"]),
        "busy": _lists_added(a["busy"], b["busy"]),
        **{name: _sum(a, name) + _sum(b, name) for name in _JOIN_SUMS},
        "hash_greatest": hashes,
        "hot": _merged_hot(a["hot"], b["hot"], tuples),
    }


def _merged_hot(a: Sequence[Entry], b: Sequence[Entry], tuples: int) -> list[Entry]:
    """The keys of both, with their rows added up and their later placements."""
    by_hash = {key["hash"]: key for key in a}
    for key in b:
        before = by_hash.get(key["hash"])
        if before is not None:
            rows, saved = before["rows"] + key["rows"], key["saved_rows"]
            if saved is not None and before["saved_rows"] is not None:
                saved += before["saved_rows"]
            key = {**key, "rows": rows, "saved_rows": saved}  # noqa: PLW2901
        by_hash[key["hash"]] = key
    hottest = sorted(by_hash.values(), key=lambda key: (-key["rows"], key["hash"]))
    shares = [key["rows"] / tuples if tuples else 0.0 for key in hottest]
    most = max(len(a), len(b))
    return [
        {**key, "share": round(min(share, 1.0), 5)}
        for key, share in list(zip(hottest, shares, strict=True))[:most]
    ]


def _sum(entry: Entry, name: str) -> float:
    amount: float = entry.get(name, 0)  # reports of earlier versions lack some
    return amount


def _added_up(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {part: round(a.get(part, 0.0) + b.get(part, 0.0), 6) for part in {**a, **b}}


def _lists_added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Element by element; the shorter one has zeros at its end."""
    size = max(len(a), len(b))
    padded = [[*amounts, *[0] * (size - len(amounts))] for amounts in (a, b)]
    return [round(x + y, 6) for x, y in zip(*padded, strict=True)]


def _greater(a: float | None, b: float | None) -> float | None:
    return max((amount for amount in (a, b) if amount is not None), default=None)


def size_of(entry: Entry) -> int:
    """Bytes of the entry as JSON."""
    return len(json.dumps(entry, separators=(",", ":")))

"""Made-up stories and reports of runs, the same for the same arguments: tests can quote them.

The figures fit together as those of a run do: hot keys load their base homes until they are
planned, and all instances alike afterwards; half-way the hot keys are others.
Nothing here knows the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

STARTED = 1_732_200_000.0
#: event time of the first batch, in microseconds: far from today, as generated data is
FIRST_EVENT_US = 800_000_000_000_000
BATCH_S = 0.62
ROWS_PER_INSTANCE = 5_000
#: batches for which a tuple stays in the state
WINDOW = 12
MADE_BY = {
    "command": "joinengine run eq5 --layout mnrt --zipf 1.2 --json run.json",
    "machine": "2 cores, x86_64",
    "python": "3.11.9",
    "commit": "0123abc",
    "versions": {"joinengine": "0.1.0", "pyspark": "4.3.0", "numpy": "2.4.1"},
}
DONE = ("split", "moved", "copied", "kept")


@dataclass(frozen=True)
class Hot:
    """A key with `share` of the tuples in batches [first, end), planned before `planned`."""

    key: str
    hash: str
    share: float
    homes: tuple[int, ...]
    done: str
    first: int
    planned: int
    end: int

    @property
    def words(self) -> str:
        """What was done with the key."""
        if self.done == "split":
            return f"split over instances {', '.join(map(str, self.homes))}"
        return f"{self.done} at instance {self.homes[-1]}"


def story(
    batches: int = 40,
    instances: int = 8,
    *,
    operators: int = 1,
    hot: int = 5,
    merged: int = 1,
    plans: int | None = None,
    resize_to: int | None = None,
    key: str | None = None,
    show_keys: bool = True,
    ended: str | None = "finished",
    layout: str = "mnrt",
) -> dict[str, Any]:
    """A story of `batches` batches, `merged` of them in an entry.

    `plans`: how many plans at most (the newest are kept); `resize_to`: the instances of the last
    third; `key`: the value of the hottest key, instead of a number; `ended`: how, or None.
    """
    rng = np.random.default_rng(14)
    found = [
        _operator(number, batches, instances, hot, resize_to, key, layout, rng)
        for number in range(operators)
    ]
    entries = [
        _entry(first, min(first + merged, batches), found) for first in range(0, batches, merged)
    ]
    told = sorted((plan for one in found for plan in one["plans"]), key=lambda plan: plan["batch"])
    kept = told if plans is None else told[len(told) - plans :]
    whole = {
        "format": 1,
        "query": "eq5",
        **{"id": "5f0c7f0e-0000-4000-8000-000000000001", "run_id": None},
        "started": STARTED,
        "show_keys": show_keys,
        "operators": [_described(number) for number in range(operators)],
        "batches_per_entry": merged,
        "batches": entries,
        "plans": kept,
        "plans_left_out": len(told) - len(kept),
        "ended": _ended(ended, batches),
    }
    return whole if show_keys else _hide(whole)


def report(batches: int = 40, instances: int = 8, **asked: Any) -> dict[str, Any]:
    """A report as `run --json` writes it, with the story of the same arguments."""
    told = story(batches, instances, **asked)
    joins = [_join_figures(told, number) for number in range(len(told["operators"]))]
    rows = sum(entry["input_rows"] for entry in told["batches"])
    seconds = sum(entry["elapsed_s"] for entry in told["batches"])
    top = ("received_per_instance", "stored_per_instance", "busy_s_per_instance", "instances_used")
    return {
        "format": 2,
        "query": "eq5",
        "layout": asked.get("layout", "mnrt"),
        **{"scale": 0.1, "zipf": 1.2, "seed": 7, "instances": instances, "order": "shuffled"},
        **{"window_us": 180_000_000, "moves": "lazy", "work_per_tuple_us": 100},
        "input_rows": rows,
        "output_rows": sum(entry["output_rows"] for entry in told["batches"]),
        "elapsed_s": seconds,
        "rows_per_s": rows / seconds,
        **{name: joins[0][name] for name in (*top, "load_skew")},
        "slowest_instance_s": max(joins[0]["received_per_instance"]) * 1e-4,
        "replans": sum(plan["replan"] for plan in told["plans"]),
        "plan_s": sum(entry["steps"]["plan"] for entry in told["batches"]),
        "moved_rows": sum(plan["moved_rows"] or 0 for plan in told["plans"]),
        "late_rows": sum(entry["late_rows"] for entry in told["batches"]),
        "null_rows": sum(entry["null_rows"] for entry in told["batches"]),
        "expired_rows": sum(join["expired_rows"] for join in joins),
        **{"result_checksum": f"{rows}:00000000000000ff", "hot_key": None, "valid": True},
        "made_by": MADE_BY,
        "joins": joins,
        "batches": [],
        "story": told,
    }


def _operator(
    number: int,
    batches: int,
    instances: int,
    hot: int,
    resize_to: int | None,
    key: str | None,
    layout: str,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Figures of one operator: (batches, instances) arrays, its hot keys and its plans."""
    resized = batches * 2 // 3 if resize_to else batches
    most = max(instances, resize_to or 0)
    keys = _hot_keys(number, batches, instances, hot, key)
    rows = ROWS_PER_INSTANCE * instances
    own = 1 + 0.08 * rng.standard_normal(most)
    noise = 1 + 0.02 * rng.standard_normal((batches, most))
    there = np.ones((batches, most))
    there[:resized, instances:] = 0
    there[resized:, resize_to or instances :] = 0
    mean = rows / there.sum(axis=1)[:, None]
    hashed, hot_share, planned_share = np.zeros((batches, most)), *np.zeros((2, batches, 1))
    for one in keys:
        hashed[one.first : one.end, one.homes[0]] += one.share * rows
        hot_share[one.first : one.end] += one.share
        planned_share[one.planned : one.end] += one.share
    hashed = (hashed + (1 - hot_share) * mean * own * noise) * there
    planned = planned_share / np.maximum(hot_share, 1e-9) * (layout != "hash")
    received = np.rint(planned * mean * noise * there + (1 - planned) * hashed).astype(int)
    told = [] if layout == "hash" else _plans(number, keys, received, instances, resize_to, resized)
    return {
        "layout": layout,
        "received": received,
        "hashed": np.rint(hashed).astype(int),
        "held": _windowed(received) * (there > 0),
        "there": there.sum(axis=1).astype(int),
        "keys": keys,
        "rows": rows,
        "plans": told,
    }


def _hot_keys(number: int, batches: int, instances: int, hot: int, key: str | None) -> list[Hot]:
    half, found = batches // 2, []
    for rank in range(2 * hot):
        early, place = rank < hot, rank % hot
        share = 0.31 / (1 + place) ** 1.3
        home = (4711 * (rank + 3) + number) % instances
        ways = max(2, min(instances, int(np.ceil(share * instances))))
        homes = tuple(sorted((home + 3 * step) % instances for step in range(ways)))
        done = DONE[0] if share * instances > 0.4 else DONE[1 + rank % 3]
        first = 0 if early else half
        name = key if rank == 0 and key is not None else str(4711 * (rank + 1))
        found.append(
            Hot(
                key=name,
                hash=f"{(0x9F03A1B2C4 + 7919 * rank) % (1 << 40):010x}",
                share=round(share, 4),
                homes=(home, *(one for one in homes if one != home)),
                done=done,
                first=first,
                planned=min(first + 2 + place, batches),
                end=half if early else batches,
            )
        )
    return found


def _plans(
    number: int,
    keys: list[Hot],
    received: NDArray[np.int_],
    instances: int,
    resize_to: int | None,
    resized: int,
) -> list[dict[str, Any]]:
    batches, found = len(received), []
    for one in keys:
        if one.done == "kept" or one.planned >= batches:
            continue
        before, after = (_skew(received[b]) for b in (one.planned - 1, one.planned))
        count = int(one.share * 16_000)
        found.append(
            {
                **{"batch": one.planned, "join": number, "cause": "heavy key", "replan": True},
                "at": STARTED + one.planned * BATCH_S,
                "words": f"key {one.key} carried {one.share:.0%} of the rows, at instance "
                f"{one.homes[0]}; {one.words}; {count:,} rows moved in 12 ms",
                "skew_before": before,
                "skew_after": after,
                "moved_rows": count,
                "move_ms": 12.0,
                "keys": [{"key": one.key, "hash": one.hash, "words": one.words}],
                "more_keys": 2,
                "instances": None,
            }
        )
    if resize_to and resized < batches:
        verb = "joined" if resize_to > instances else "left"
        plain = dict.fromkeys(("skew_after", "moved_rows", "move_ms"))
        found.append(
            {
                **{"batch": resized, "join": number, "at": STARTED + resized * BATCH_S},
                **{"cause": "resize", "replan": False, "keys": [], "more_keys": 0, **plain},
                "words": f"{abs(resize_to - instances)} instances {verb}: {resize_to} now",
                "skew_before": _skew(received[resized - 1]),
                "instances": [instances, resize_to],
            }
        )
    return found


def _entry(first: int, end: int, operators: list[dict[str, Any]]) -> dict[str, Any]:
    """The batches from `first` up to `end` (out) as one entry."""
    n, rows = end - first, int(operators[0]["received"][first:end].sum())
    wave = 1 + 0.15 * np.sin(first / 5)
    steps = {"route": 0.16, "join": 0.24, "plan": 0.01, "commit": 0.02, "sink": 0.05, "other": 0.14}
    work = {
        "read": 0.05,
        "route": 0.04,
        "exchange": 0.04,
        "sort": 0.04,
        "probe": 0.06,
        "store": 0.03,
    }
    late = 3 * n if first % 7 == 3 else 0
    return {
        **{"first": first, "last": end - 1, "at": STARTED + first * BATCH_S},
        "input_rows": rows,
        "output_rows": int(rows * 0.8),
        "elapsed_s": round(sum(steps.values()) * n * wave, 4),
        "steps": {name: round(seconds * n * wave, 4) for name, seconds in steps.items()},
        "work": {name: round(seconds * n * wave, 4) for name, seconds in work.items()},
        "late_rows": late,
        "null_rows": n if first % 11 == 5 else 0,
        "skipped_files": 0,
        "behind_rows": 3 * n,
        "behind": [dict(source="kafka clicks", partition=1, rows=3 * n, seconds=12.5)],
        "latency_p50": round(0.31 * wave, 4),
        "latency_p99": round(0.47 * wave, 4),
        "joins": [_join(one, first, end, late) for one in operators],
    }


def _join(one: dict[str, Any], first: int, end: int, late: int) -> dict[str, Any]:
    last = end - 1
    instances = int(one["there"][last])
    received = one["received"][first:end, :instances].sum(axis=0)
    held = one["held"][last, :instances]
    newest = FIRST_EVENT_US + end * 15_000_000
    hot = [key for key in one["keys"] if key.first <= last < key.end]
    full = one["received"].shape[0] > WINDOW
    return {
        "layout": one["layout"],
        "instances": instances,
        "versions": 1 + (last % 9 == 4),
        "received": received.tolist(),
        "stored": held.tolist(),
        "busy": [round(float(s), 3) for s in received * 1.4e-5],
        "watermark": newest - 63_000_000 if first else None,
        "newest": newest,
        "state_rows": int(held.sum()),
        "state_bytes": int(held.sum()) * 34,
        "forecast_rows": int(one["rows"] * WINDOW * 1.02) if full and first > 4 else None,
        "forecast_bytes": int(one["rows"] * WINDOW * 1.02) * 34 if full and first > 4 else None,
        "pending_rows": 40 + 9 * (last % 5),
        "moved_rows": sum(p["moved_rows"] or 0 for p in one["plans"] if first <= p["batch"] < end),
        "expired_rows": int(received.sum()) if last > WINDOW else 0,
        "late_rows": late,
        "probe_copies": int(received.sum() * 0.02),
        **dict.fromkeys(("moved_bytes", "null_rows", "run_files", "run_file_bytes"), 0),
        **dict.fromkeys(("fetched_files", "fetched_bytes"), 0),
        "routing_entries": len(hot),
        "split_keys": sum(key.done == "split" and key.planned <= last for key in hot),
        "hot": [_hot_row(key, one, first, end) for key in hot],
        "greatest": int(one["received"][last].max()),
        "hash_greatest": int(one["hashed"][last].max()),
    }


def _hot_row(key: Hot, one: dict[str, Any], first: int, end: int) -> dict[str, Any]:
    planned = key.planned < end and key.done != "kept" and one["layout"] != "hash"
    rows = int(key.share * one["rows"]) * (end - first)
    ways = len(key.homes) if key.done == "split" else 1
    return {
        **{"key": key.key, "hash": key.hash, "rows": rows, "share": key.share},
        "done": key.done if planned else "kept",
        "homes": sorted(key.homes) if key.done == "split" and planned else [key.homes[0]],
        "words": key.words if planned else f"kept at instance {key.homes[0]}",
        "since": key.planned if planned else None,
        "saved_rows": int(rows * (1 - 1 / ways)) if planned else 0,
    }


def _join_figures(told: dict[str, Any], number: int) -> dict[str, Any]:
    joins = [entry["joins"][number] for entry in told["batches"]]
    most = max(join["instances"] for join in joins)
    received, busy, held = (
        np.array([[*join[name], *[0] * (most - join["instances"])] for join in joins], float)
        for name in ("received", "busy", "stored")
    )
    half = len(joins) // 2
    return {
        "received_per_instance": received.sum(axis=0).astype(int).tolist(),
        "stored_per_instance": joins[-1]["stored"],
        "busy_s_per_instance": busy.sum(axis=0).round(6).tolist(),
        "instances_used": joins[-1]["instances"],
        "load_skew": {
            name: {"run": _skew(values.sum(axis=0)), "last_half": _skew(values[half:].sum(axis=0))}
            for name, values in (("received", received), ("stored", held), ("busy", busy))
        },
        "input_rows": int(received.sum()),
        "output_rows": sum(entry["output_rows"] for entry in told["batches"]),
        "replans": sum(plan["replan"] for plan in told["plans"] if plan["join"] == number),
        "moved_rows": sum(join["moved_rows"] for join in joins),
        "late_rows": sum(join["late_rows"] for join in joins),
        "null_rows": 0,
        "expired_rows": sum(join["expired_rows"] for join in joins),
        "received_by_batch": received.astype(int).tolist(),
    }


def _described(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "kind": "join",
        "on": ("l_orderkey = o_orderkey", "s_suppkey = l_suppkey", "n_nationkey = s_nationkey")[
            number % 3
        ],
        "how": "inner join",
        "within": "o_time - l_time in [0 s, 180 s]" if number % 3 == 0 else None,
        "timed": number % 3 == 0,
        "inputs": (["lineitem", "orders"], ["supplier", "join 0"], ["nation", "join 1"])[
            number % 3
        ],
        "leaves": [
            "left tuples leave 180 s after their time",
            "right tuples leave at the watermark",
        ],
    }


def _ended(how: str | None, batches: int) -> dict[str, Any] | None:
    if how is None:
        return None
    words = {"finished": "all data is read", "stopped": "stopped by stop()"}
    at = STARTED + batches * BATCH_S
    return {"how": how, "words": words.get(how, "join 0 failed: run 17 is lost"), "at": at}


def _hide(whole: dict[str, Any]) -> dict[str, Any]:
    for one in (hot for e in whole["batches"] for join in e["joins"] for hot in join["hot"]):
        one["key"] = None
    for plan in whole["plans"]:
        for key in plan["keys"]:
            plan["words"] = plan["words"].replace(f"key {key['key']} ", f"key {key['hash']} ")
            key["key"] = None
    return whole


def _windowed(received: NDArray[np.int_]) -> NDArray[np.int_]:
    """(batches, N) sums of the last WINDOW batches."""
    total = np.cumsum(received, axis=0)
    return total - np.pad(total, ((WINDOW, 0), (0, 0)))[: len(total)]


def _skew(loads: NDArray[Any]) -> float:
    used = loads[loads > 0]
    return round(float(used.max() / used.mean()), 4) if len(used) else 1.0

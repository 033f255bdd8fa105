"""The options of a writer: which sink takes which, and what their values may be.

Law: an option that a sink of ours does not take is refused by name; case does not matter in names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.server import LOOPBACK, Place, check_host, check_port, check_token
from joinengine.state.store import StoreSpeed

#: Options of every query.
_QUERY = (
    *("checkpointLocation", "stateLocation", "cacheSize", "memoryPerTask", "fsync", "capacity"),
    *("moves", "load", "workPerTuple", "workPerResult"),
    *("sideOutput", "showKeys", "logPlans", "recovery", "storeRate", "exchange", "durability"),
    *("tasks", "lookEvery"),
    *("livePort", "liveHost", "liveToken", "fileMode"),
)
_PARQUET = (
    *("path", "compression", "shared", "overwrite"),
    *("partitionBy", "targetFileSize", "compactEvery"),
)
#: Our own sinks -> the options that each takes beside those of the query. A format of Spark takes
#: whatever Spark's writer takes.
_OF_SINK: Mapping[str, tuple[str, ...]] = {
    "parquet": _PARQUET,
    "noop": (),
    "console": ("numRows", "truncate"),
    "memory": (),
    "foreachBatch": (),
    "toTable": ("partitionBy",),
}
#: What only our Parquet sink does.
_PARQUET_ALONE = ("shared", "overwrite", "targetFileSize", "compactEvery")
#: Columns, and so no text; the writer keeps them apart.
PARTITION_BY = "partitionBy"
_NAMES = {name.lower(): name for names in (_QUERY, *_OF_SINK.values()) for name in names}
#: Spark's names of codecs -> Arrow's.
_CODECS = {
    **{"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip"},
    **{"zstd": "zstd", "lz4_raw": "lz4"},
}
#: Above all counts; Python would not even read thousands of digits.
_MOST_DIGITS = 18
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def named(key: str, value: Any) -> dict[str, str]:
    """One option as text, under the name by which it is known, however its case is.

    Raises InvalidRequest if the name is no text, or the value is None or a collection.

    >>> named("CHECKPOINTlocation", "c"), named("fsync", True), named("Header", 1)
    ({'checkpointLocation': 'c'}, {'fsync': 'true'}, {'Header': '1'})
    """
    if not isinstance(key, str):
        raise InvalidRequest(f"option: {key!r} is no name; give text")
    if value is None or isinstance(value, list | tuple | set | dict):
        raise InvalidRequest(f"option {key}: {value!r} is no value; give text, a number or a bool")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return {_NAMES.get(key.lower(), key): text}


def merged(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """`options` and `more`; of two names that differ in case alone the later one counts."""
    later = {key.lower() for key in more}
    return {key: text for key, text in options.items() if key.lower() not in later} | dict(more)


def columns(name: str, given: Sequence[Any]) -> tuple[str, ...]:
    """Names of columns, as `f("a", "b")`, `f(["a", "b"])` or `f("a, b")`.

    >>> columns("partitionBy", ["a, b"]), columns("partitionBy", [["a, b"]])
    (('a', 'b'), ('a, b',))
    """
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    elif len(given) == 1 and isinstance(given[0], str):
        given = [one.strip() for one in given[0].split(",")]
    for one in given:
        if not isinstance(one, str) or not one:
            raise InvalidRequest(f"{name}: {one!r} is no name of a column; give text")
    return tuple(given)


def check_folders(sink: str, partition_by: Sequence[str]) -> None:
    """Refuse Hive folders for a sink of ours that makes none."""
    if partition_by and PARTITION_BY not in _OF_SINK.get(sink, (PARTITION_BY,)):
        raise InvalidRequest(
            f"partitionBy: {sink} makes no folders; use the format 'parquet', a format of Spark, "
            f"or a table"
        )


def check_names(sink: str, options: Iterable[str]) -> None:
    """Refuse options that the sink does not take; formats of Spark judge their own."""
    for name in options:
        if name in _QUERY or name in _OF_SINK.get(sink, ()):
            continue
        if name in _PARQUET_ALONE:
            raise InvalidRequest(f"{sink}: option {name!r} goes with format 'parquet' only")
        if sink not in _OF_SINK:
            continue
        known = (*_OF_SINK[sink], *_QUERY)
        near = difflib.get_close_matches(name.lower(), [one.lower() for one in known], 1)
        hint = f"did you mean {_NAMES[near[0]]!r}? " if near else ""
        raise InvalidRequest(
            f"{sink}: option {name!r} is unknown; {hint}The options are {', '.join(known)}"
        )


def for_spark(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are for the writer of a format of Spark."""
    ours = (*_QUERY, *_PARQUET_ALONE, PARTITION_BY)
    return {key: text for key, text in options.items() if key not in ours}


def boolean(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """An option that is `true` or `false`. Raises InvalidRequest for any other word."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name}: {options[name]!r} is neither true nor false; give one")
    return text == "true"


def whole(
    options: Mapping[str, str], name: str, unit: str, most: int = 10**_MOST_DIGITS
) -> int | None:
    """An option that is a positive whole number, `most` at most; None: it is not given.

    Raises InvalidRequest for any other text.
    """
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise InvalidRequest(f"{name}: {text!r} must be a positive whole number ({unit})")
    if len(text) > _MOST_DIGITS or int(text) > most:
        raise InvalidRequest(f"{name}: {text!r} is too much; give {most:,} {unit} or fewer")
    return int(text)


def size_bytes(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    """An option that is a size: bytes, or a number with a unit; None: it is not given.

    Raises InvalidRequest for a text that is no size, and for one below `least`.

    >>> size_bytes({"targetFileSize": "128 MB"}, "targetFileSize")
    134217728
    """
    text = options.get(name)
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip().lower())
    if not match:
        raise InvalidRequest(f"{name}: {text!r} is no size; give bytes, or a size as '128 MB'")
    size = int(float(match[1]) * 1024 ** _POWERS[match[2]])
    if size < least:
        raise InvalidRequest(f"{name}: {text!r} is too little; give {least:,} bytes or more")
    return size


#: Options of the live page -> variables of the environment that hold where they are not given.
_LIVE = {
    "livePort": "JOINENGINE_LIVE_PORT",
    "liveHost": "JOINENGINE_LIVE_HOST",
    "liveToken": "JOINENGINE_LIVE_TOKEN",
}


def live_place(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[Place, bool]:
    """Where the live page of a query is, and whether it comes with the query: if a port is said.

    An option beats the environment, where an empty variable says nothing. Raises InvalidRequest
    for a value that cannot be; it names the option or the variable.

    >>> live_place({"livePort": "0"}, {"JOINENGINE_LIVE_PORT": "4050"})
    (Place(port=0, host='127.0.0.1', token=None), True)
    """
    said = dict[str, tuple[str, str]]()
    for option, variable in _LIVE.items():
        if option in options:
            said[option] = options[option], option
        elif environment.get(variable):
            said[option] = environment[variable], variable
    port = check_port(*said["livePort"]) if "livePort" in said else 0
    host = check_host(*said["liveHost"]) if "liveHost" in said else LOOPBACK
    token = check_token(*said["liveToken"]) if "liveToken" in said else None
    return Place(port, host, token), "livePort" in said


def codec(options: Mapping[str, str]) -> str:
    """Arrow's name of the codec that `compression` names as Spark does; the default is snappy."""
    text = options.get("compression", "snappy").lower()
    if text not in _CODECS:
        raise InvalidRequest(f"compression: {text!r} is unknown; use one of {', '.join(_CODECS)}")
    return _CODECS[text]


def work_us(options: Mapping[str, str], option: str) -> int:
    """Emulated work for each tuple (`workPerTuple`) or result (`workPerResult`), microseconds."""
    work = microseconds(options.get(option, "0 s"), option)
    if work < 0:
        raise InvalidRequest(f"{option}: {describe(work)} is negative; use 0 or more")
    return work


def look_every_s(options: Mapping[str, str]) -> float | None:
    """How often new files are looked for, in seconds; None: it is not said.

    Raises InvalidRequest for a text that is no duration, and for one that is not above 0.

    >>> look_every_s({"lookEvery": "500 ms"})
    0.5
    """
    text = options.get("lookEvery")
    if text is None:
        return None
    every = microseconds(text, "lookEvery")
    if every <= 0:
        raise InvalidRequest(f"lookEvery: {text!r} is no time to rest; give more than 0, as '5 s'")
    return every / 1e6


def store_speed(options: Mapping[str, str]) -> StoreSpeed | None:
    """How fast a store is; None: it is not said. Raises InvalidRequest for a text that is none."""
    text = options.get("storeRate")
    return None if text is None else StoreSpeed.of(text, "storeRate")


def folder_mode(options: Mapping[str, str]) -> int | None:
    """The mode of folders whose files may have `fileMode`; None: it is not said.

    Who may do something with the files may enter the folder. Raises InvalidRequest for a text that
    is no mode of files, or keeps their owner out.

    >>> oct(folder_mode({"fileMode": "640"}))
    '0o750'
    """
    text = options.get("fileMode")
    if text is None:
        return None
    if not re.fullmatch("0?6[046]{2}", text):
        raise InvalidRequest(
            f"fileMode: {text!r} is no mode of files; give three digits, for owner, group and "
            f"others: 6 for the owner, and each of the others 0, 4 (may read) or 6 (and write)"
        )
    mode = int(text, 8)
    return mode | (mode & 0o444) >> 2


def trigger_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What Spark's `trigger` gets. Raises InvalidRequest for anything that it does not take."""
    known = ("processingTime", "availableNow", "once")
    choose = f"use one of {', '.join(known)}"
    for name in sorted(given.keys() - set(known)):
        raise InvalidRequest(f"trigger: {name} is not served; {choose}")
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise InvalidRequest(f"trigger: {', '.join(chosen) or 'nothing'} is given; {choose}")
    ((name, value),) = chosen.items()
    if name != "processingTime":
        if value is not True:
            raise InvalidRequest(f"trigger: {name}={value!r} is not served; give {name}=True")
        return chosen
    length = microseconds(value, "trigger: processingTime")
    if length < 0:
        raise InvalidRequest(f"trigger: processingTime {value!r} is negative; use 0 or more")
    return {name: f"{length // 1000} milliseconds"}


def check_batch(what: str, batch: object) -> None:
    """Raise InvalidRequest for a batch before which nothing can be lost."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise InvalidRequest(
            f"{what}: batch {batch!r}: before batch 1 there is no state; give 1 or more"
        )

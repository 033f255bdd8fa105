"""Reads the options that a user gives: their names, their values, and which sink takes which.

Law: an option that one of our own sinks does not take is refused by name; case does not matter in
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joinengine.api.option_table import OPTIONS, SINKS
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import chosen_exchange
from joinengine.model.arguments import check_text
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import meant
from joinengine.reporting.server import Place
from joinengine.world import kafka_clients

#: An option whose value is columns, not text: the writer keeps it apart.
PARTITION_BY = "partitionBy"
#: Options of our own file sinks alone; their other options exist in Spark's file writers, too.
_OURS_ALONE = (
    *("shared", "overwrite", "targetFileSize", "compactEvery"),
    *("commitEvery", "mergeKeys"),
)
#: Sink -> the prefix of the options that it passes to a library.
PREFIXES = {"iceberg": "catalog.", "kafka": "kafka."}
_CANONICAL = {name.lower(): name for name in OPTIONS}


def named(key: str, value: Any) -> dict[str, str]:
    """One option as text, under its documented name, whatever case it was given in.

    Raises InvalidRequest if the name is not text, or the value is None or a collection.

    >>> named("CHECKPOINTlocation", "c"), named("fsync", True), named("Header", 1)
    ({'checkpointLocation': 'c'}, {'fsync': 'true'}, {'Header': '1'})
    """
    if not isinstance(key, str):
        raise InvalidRequest(f"option: expected a name as text, found {key!r}")
    if value is None or isinstance(value, list | tuple | set | dict):
        kind = None if value is None else f"a {type(value).__name__}"  # it may hold a secret
        raise InvalidRequest(f"option {key}: expected text, a number or a bool, found {kind}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    for prefix in PREFIXES.values():
        if key.lower().startswith(prefix):
            key = prefix + key[len(prefix) :]
    return {_CANONICAL.get(key.lower(), key): text}


def is_secret(name: str) -> bool:
    """Whether the value of an option must not be shown.

    >>> is_secret("liveToken"), is_secret("kafka.sasl.password"), is_secret("topic")
    (True, True, False)
    """
    # What a catalogue takes depends on its kind. An address may hold a password, too: that of a
    # registry, or of a database to which a format of Spark writes.
    is_ours = name == "liveToken" or name.startswith(PREFIXES["iceberg"])
    return is_ours or name.lower().endswith("url") or kafka_clients.is_secret(name)


def merged(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """`options` and `more`; of two names that differ only in case, the later one counts."""
    later = {key.lower() for key in more}
    return {key: text for key, text in options.items() if key.lower() not in later} | dict(more)


def value_of(options: Mapping[str, str], name: str) -> Any:
    """The value of an option, or its default; None: it is not given, and has no default.

    Raises InvalidRequest for a text that the option does not take.

    >>> value_of({"lookEvery": "500 ms"}, "lookEvery"), value_of({}, "memoryPerTask")
    (0.5, 536870912)
    """
    option = OPTIONS[name]
    text = options.get(name, option.default)
    return None if text is None else option.value.read(text, name)


def settings_of(options: Mapping[str, str], **more: Any) -> Settings:
    """How a query runs under these options; `more`: settings that have no option.

    Raises InvalidRequest as `value_of` does.
    """
    values = {
        option.setting: value_of(options, option.name)
        for option in OPTIONS.values()
        if option.setting
    }
    state = options.get("stateLocation", options.get("checkpointLocation"))
    return Settings(exchange=chosen_exchange(options.get("exchange"), state), **values, **more)


def sink_takes(sink: str, name: str) -> bool:
    """Whether a sink takes an option of joinengine; for Spark's formats: whether all sinks do."""
    return name in OPTIONS and (
        sink in OPTIONS[name].sinks if sink in SINKS else OPTIONS[name].sinks == SINKS
    )


def check_names(sink: str, options: Iterable[str]) -> None:
    """Refuse options that the sink does not take; formats of Spark check their own."""
    for name in options:
        if sink_takes(sink, name) or name.lower().startswith(PREFIXES.get(sink, "\0")):
            continue
        if name in _OURS_ALONE:
            takers = " or ".join(map(repr, OPTIONS[name].sinks))
            raise InvalidRequest(
                f"{sink}: option {name!r} is only valid with format {takers}; leave it out"
            )
        if sink not in SINKS:
            continue
        # Options of this sink come first: a reader looks for them.
        known = sorted((option for option in OPTIONS if sink_takes(sink, option)), key=_is_of_all)
        raise InvalidRequest(
            f"{sink}: option {name!r} is unknown{meant(name, known) or '.'} The options are "
            f"{', '.join(known)}"
        )


def _is_of_all(name: str) -> bool:
    return OPTIONS[name].sinks == SINKS


def for_spark(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are for the writer of a format of Spark."""
    ours = {*filter(_is_of_all, OPTIONS), *_OURS_ALONE, PARTITION_BY}
    return {key: text for key, text in options.items() if key not in ours}


def check_folders(sink: str, partition_by: Sequence[str]) -> None:
    """Refuse Hive folders for those of our own sinks that make none."""
    if partition_by and sink in SINKS and not sink_takes(sink, PARTITION_BY):
        raise InvalidRequest(
            f"partitionBy: {sink} writes no folders; use format 'parquet' or 'delta', a Spark "
            f"format or toTable. A table of Iceberg says itself how it is partitioned"
        )


def columns(name: str, given: Sequence[Any]) -> tuple[str, ...]:
    """Names of columns, as `f("a", "b")`, `f(["a", "b"])` or `f("a, b")`.

    >>> columns("partitionBy", ["a, b"]), columns("partitionBy", [["a, b"]])
    (('a', 'b'), ('a, b',))
    """
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    elif len(given) == 1 and isinstance(given[0], str):
        given = [column.strip() for column in given[0].split(",")]
    for column in given:
        if not isinstance(column, str) or not column:
            raise InvalidRequest(f"{name}: expected the name of a column, found {column!r}")
    return tuple(given)


def live_place(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[Place, bool]:
    """Where the live page of a query is, and whether the query has one: only if a port is given.

    An option overrides its environment variable; an empty variable counts as not set. Raises
    InvalidRequest, which names the option or the variable, for an invalid value.

    >>> live_place({"livePort": "0"}, {"JOINENGINE_LIVE_PORT": "4050"})
    (Place(port=0, host='127.0.0.1', token=None), True)
    """
    values = dict[str, Any]()
    for name, variable in (
        (option.name, option.variable) for option in OPTIONS.values() if option.variable
    ):
        text, where = environment.get(variable) or OPTIONS[name].default, variable
        if name in options:
            text, where = options[name], name
        values[name] = None if text is None else OPTIONS[name].value.read(text, where)
    port = values["livePort"]
    return Place(port or 0, values["liveHost"], values["liveToken"]), port is not None


def trigger_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for Spark's `trigger`. Raises InvalidRequest for any that it does not take."""
    known = ("processingTime", "availableNow", "once")
    names = ", ".join(known)
    for name in sorted(given.keys() - set(known)):
        raise InvalidRequest(f"trigger: expected one of {names}, found {name}")
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        asked_for = " and ".join(chosen) or "none"
        raise InvalidRequest(f"trigger: expected one of {names}, found {asked_for}")
    ((name, value),) = chosen.items()
    if name != "processingTime":
        if value is not True:
            raise InvalidRequest(f"trigger: expected {name}=True, found {name}={value!r}")
        return chosen
    length = microseconds(value, "trigger: processingTime")
    if length < 0:
        raise InvalidRequest(f"trigger: expected a processingTime of 0 or more, found {value!r}")
    return {name: f"{length // 1000} milliseconds"}


def check_batch(what: str, batch: object) -> None:
    """Raise InvalidRequest unless `batch` is 1 or later: before batch 1 no state exists."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise InvalidRequest(
            f"{what}: expected a batch from 1 on, found {batch!r}; before batch 1 no state exists"
        )


def query_name(name: str) -> str:
    """The name of a query. Raises InvalidRequest if it is empty, or UTF-8 cannot hold it."""
    if not check_text(name, "queryName", "queryName('clicks')").strip():
        raise InvalidRequest("queryName: the name is empty; give a name, or leave it out")
    if any("\ud800" <= char <= "\udfff" for char in name):
        raise InvalidRequest(
            f"queryName: {name!r} holds half of a character (a lone surrogate); leave it out of "
            f"the name"
        )
    return name

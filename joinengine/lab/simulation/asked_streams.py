"""The stream that the options of `joinengine simulate` ask for: synthetic, or the user's own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from joinengine.lab.simulation.key_files import StreamFile
from joinengine.lab.simulation.workload import KeyStream, Workload
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest


def stream_of(settings: dict[str, Any]) -> KeyStream:
    """The user's stream (`--stream`), or a synthetic one."""
    if settings["stream"] is None:
        for name in ("key", "time", "every"):
            if settings[name] is not None:
                raise InvalidRequest(
                    f"{name}: {settings[name]} applies to a stream of your own; give --stream too"
                )
        settings["rows"] = 1_000_000 if settings["rows"] is None else settings["rows"]
        return workload_of(settings)
    context = click.get_current_context()
    for name in ("keys", "zipf", "shape", "fluctuation", "drift"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InvalidRequest(
                f"{name}: {settings[name]} applies to generated loads, not to --stream "
                f"{settings['stream']}; leave out one of the two"
            )
    if settings["every"] is not None and settings["time"] is None:
        raise InvalidRequest(
            f"every: {settings['every']} needs an event-time column; give --time COLUMN too"
        )
    if settings["rows"] is not None and settings["time"] is not None:
        raise InvalidRequest(
            f"rows: {settings['rows']} and time: {settings['time']} both define intervals. Leave "
            f"out --rows; --every DURATION sets the length"
        )
    every = settings["every"]
    return StreamFile(
        settings["stream"],
        settings["key"],
        settings["rows"],
        settings["time"],
        None if every is None else microseconds(every, "every"),
    )


def workload_of(settings: dict[str, Any]) -> Workload:
    """The synthetic stream of the settings."""
    given = {f.name: settings[f.name] for f in fields(Workload) if f.name in settings}
    phases = _phases(settings["zipf"])
    return Workload(**given | {"zipf": phases[0][0], "phases": phases})


def _phases(text: str) -> tuple[tuple[float, int], ...]:
    """(exponent, intervals) in turn: of `0.85`, or of `0.2:5,1.5:10`."""
    try:
        parts = [part.partition(":") for part in text.split(",")]
        return tuple((float(z), int(n) if colon else 1) for z, colon, n in parts)
    except ValueError:
        raise InvalidRequest(
            f"zipf: expected an exponent such as 0.85, or several in turn such as 0.2:5,1.5:10, "
            f"found {text!r}"
        ) from None

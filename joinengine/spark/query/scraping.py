"""Answers requests for `/metrics` of a running query."""

from __future__ import annotations

from collections.abc import Callable

from joinengine.driver.batch import BatchRunner
from joinengine.driver.rates import rates_seen
from joinengine.reporting.prometheus import Source, answer
from joinengine.spark.query.loop_thread import Running
from joinengine.spark.query.run_watch import Watch

#: The most batches from which the forecast is made: a scrape must stay cheap.
_FORECAST_BATCHES = 500


def scraped(
    query: Running, runner: BatchRunner, watch: Watch
) -> Callable[[str], tuple[bytes, str]]:
    """A function: header `Accept` -> the figures of the query, and their content type.

    It may be called on any thread, and after the end of the query. It runs no job and takes no
    lock, so a batch never waits for it.
    """
    query_id = query.id
    name = query.name or query_id

    def figures(accept: str) -> tuple[bytes, str]:
        source = Source(
            query=name,
            query_id=query_id,
            manifest=runner.manifest,
            record=watch.records[-1] if watch.records else None,
            running=_runs(query),
            forecast_bytes=_forecasts(runner, watch),
        )
        return answer(source, accept)

    return figures


def _forecasts(runner: BatchRunner, watch: Watch) -> list[float | None]:
    """By operator, the bytes of its state at its fullest; None: unknown."""
    rates = rates_seen(watch.records[-_FORECAST_BATCHES:])
    forecasts = list[float | None]()
    for operator in runner.query.operators:
        ours = {side: flow for (number, side), flow in rates.items() if number == operator.index}
        forecast = operator.forecast(ours)
        forecasts.append(None if forecast is None else forecast[1])
    return forecasts


def _runs(query: Running) -> bool:
    try:
        return bool(query.isActive)
    except Exception:  # the JVM is gone
        return False

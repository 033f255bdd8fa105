"""A stream join for Spark that splits hot keys and rebalances while it runs.

The public names are loaded when they are first used (PEP 562), so that what needs no Spark, such as
`joinengine.layouts`, does not load it.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joinengine.model.spelling import print_arguments

logging.getLogger("joinengine").addFilter(print_arguments)

if TYPE_CHECKING:
    from joinengine.api.aggregates import StreamAggregate
    from joinengine.api.joins import StreamJoin
    from joinengine.api.latest import latest
    from joinengine.api.sql_queries import sql
    from joinengine.api.writer import JoinWriter
    from joinengine.model.aggregation import last, session_windows, top, windows
    from joinengine.model.conditions import asof, band, equi, theta
    from joinengine.model.errors import (
        CheckpointMismatch,
        DamagedState,
        InvalidRequest,
        JoinEngineError,
        TakenOver,
    )
    from joinengine.model.windows import sliding, tumbling, within
    from joinengine.spark.query.active import active, awaitAnyTermination
    from joinengine.spark.query.join_query import JoinQuery
    from joinengine.spark.session.session import session
    from joinengine.spark.sources.inputs import Stream, parquet_stream
    from joinengine.spark.sources.kafka_streams import KafkaStream, kafka_stream

#: Where each public name lives.
_HOMES = {
    "CheckpointMismatch": "model.errors",
    "DamagedState": "model.errors",
    "InvalidRequest": "model.errors",
    "JoinEngineError": "model.errors",
    "JoinQuery": "spark.query.join_query",
    "JoinWriter": "api.writer",
    "KafkaStream": "spark.sources.kafka_streams",
    "Stream": "spark.sources.inputs",
    "kafka_stream": "spark.sources.kafka_streams",
    "StreamAggregate": "api.aggregates",
    "StreamJoin": "api.joins",
    "TakenOver": "model.errors",
    "active": "spark.query.active",
    "asof": "model.conditions",
    "awaitAnyTermination": "spark.query.active",
    "band": "model.conditions",
    "equi": "model.conditions",
    "last": "model.aggregation",
    "latest": "api.latest",
    "parquet_stream": "spark.sources.inputs",
    "session": "spark.session.session",
    "session_windows": "model.aggregation",
    "sliding": "model.windows",
    "sql": "api.sql_queries",
    "theta": "model.conditions",
    "top": "model.aggregation",
    "tumbling": "model.windows",
    "windows": "model.aggregation",
    "within": "model.windows",
}

__all__ = [
    "CheckpointMismatch",
    "DamagedState",
    "InvalidRequest",
    "JoinEngineError",
    "JoinQuery",
    "JoinWriter",
    "KafkaStream",
    "Stream",
    "StreamAggregate",
    "StreamJoin",
    "TakenOver",
    "active",
    "asof",
    "awaitAnyTermination",
    "band",
    "equi",
    "kafka_stream",
    "last",
    "latest",
    "parquet_stream",
    "session",
    "session_windows",
    "sliding",
    "sql",
    "theta",
    "top",
    "tumbling",
    "windows",
    "within",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415 # it is slow to load

        return metadata.version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exported = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = exported
    return exported


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

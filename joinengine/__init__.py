"""A stream join for Spark that splits hot keys and rebalances while it runs."""

from joinengine.api import StreamAggregate, StreamJoin
from joinengine.model.aggregates import top, windows
from joinengine.model.conditions import band, equi, theta
from joinengine.model.errors import (
    CheckpointMismatch,
    DamagedState,
    InvalidRequest,
    JoinEngineError,
)
from joinengine.model.windows import sliding, tumbling, within
from joinengine.spark.inputs import Stream, parquet_stream
from joinengine.spark.query import JoinQuery
from joinengine.spark.session import session
from joinengine.spark.writer import JoinWriter

__all__ = [
    "CheckpointMismatch",
    "DamagedState",
    "InvalidRequest",
    "JoinEngineError",
    "JoinQuery",
    "JoinWriter",
    "Stream",
    "StreamAggregate",
    "StreamJoin",
    "band",
    "equi",
    "parquet_stream",
    "session",
    "sliding",
    "theta",
    "top",
    "tumbling",
    "windows",
    "within",
]

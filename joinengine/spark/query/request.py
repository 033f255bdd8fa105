"""The request for the start of a query, which a writer makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from joinengine.driver.settings import Settings
from joinengine.layouts.layout import LayoutChoice
from joinengine.operators.base import QuerySpec, time_column
from joinengine.reporting.plan_log import PlanLog
from joinengine.reporting.server import Place
from joinengine.spark.query.heartbeat import Takeover
from joinengine.spark.query.query_folders import Output
from joinengine.spark.sources.inputs import Source
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.state.checkpoint import Checkpoint


@dataclass(frozen=True)
class Request:
    """Everything that starting a query needs."""

    spark: SparkSession
    query: QuerySpec
    choices: Sequence[LayoutChoice]
    sources: Sequence[Source]
    checkpoint_location: str
    settings: Settings
    trigger: Mapping[str, Any]
    name: str | None = None
    side_output: str | None = None
    #: where the engine's part of the checkpoint lies; None: at the checkpoint location
    state_location: str | None = None
    #: the permissions of its folders; None: only the owner's, if they are new
    mode: int | None = None
    output: Output | None = None
    #: where the live page is, by options and environment; `watched`: it opens with the query
    live: Place = field(default_factory=Place)
    watched: bool = False
    #: the query over the columns that the checkpoint keeps; None: `query` has no further columns
    before: QuerySpec | None = None
    #: how plans are logged
    plans: PlanLog = PlanLog.WORDS
    takeover: Takeover = Takeover.WAIT

    @property
    def frames(self) -> dict[int, DataFrame]:
        """Source -> streaming DataFrame, of the inputs that Spark reads."""
        return {
            number: source
            for number, source in enumerate(self.sources)
            if isinstance(source, DataFrame) and number not in self.query.tables
        }

    def own_feeds(self, checkpoint: Checkpoint) -> list[tuple[OwnStream, dict[str, Any]]]:
        """The `Stream`s, each with the options of its feed.

        Raises InvalidRequest for a stream whose files cannot be put in the requested order.
        """
        return [
            (
                stream,
                stream.in_order(time_column(self.query, n))
                | {"source": n, "log": checkpoint.sources.at(str(n)).folder},
            )
            for n, stream in enumerate(self.sources)
            if isinstance(stream, OwnStream)
        ]

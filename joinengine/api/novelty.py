"""`StreamNovelty`: tuples that resemble none of those before them under their key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from joinengine.api import checks
from joinengine.api.joins import schema_of_side
from joinengine.api.queries import StreamQuery
from joinengine.layouts import LayoutChoice
from joinengine.layouts.base import check_aggregates
from joinengine.model.aggregates import EventTime
from joinengine.model.columns import require_column
from joinengine.model.conditions import Equi
from joinengine.model.errors import InvalidRequest
from joinengine.model.novelty import SIMILARITY, NoveltySpec
from joinengine.model.query import FromSource
from joinengine.spark.inputs import Source


class StreamNovelty(StreamQuery):
    """Tuples of a stream whose terms resemble none of the `history` ones before them by `key`.

    `terms` is a column of lists of distinct integers. Results are all other columns and the
    greatest cosine similarity, where it is at most `threshold`; they leave when the watermark has
    passed. Only layouts that keep keys whole find the same as one process does; choices and
    splitting layouts see a part of each key, and call more tuples novel.

    Raises InvalidRequest for columns that are not there, and a layout that copies tuples.
    """

    def __init__(  # noqa: PLR0913
        self,
        source: Source,
        *,
        key: str,
        terms: str,
        time: str,
        delay_us: int,
        history: int,
        threshold: float,
        layout: LayoutChoice,
        instances: int,
    ) -> None:
        checks.check_source(source)
        self._source, self._choice, self._instances = source, layout, instances
        self._schema = schema_of_side(source)
        for name in (key, terms, time):
            require_column(self._schema, name, "novelty")
        if self._schema.field(key).type != pa.int32():
            raise InvalidRequest(f"novelty: {key} must be a 32-bit integer; cast it")
        layout.check(Equi((key,), (key,)), instances)
        check_aggregates(layout)
        delay = checks.check_event_time(self._schema, (time,), delay_us, (source, time))
        self._window = EventTime(((time,), ()), (delay, None))
        self._asked = {"key": key, "terms": terms, "history": history, "threshold": threshold}

    def _flat(self) -> tuple[list[Any], list[Source]]:
        return [self], [self._source]

    def _spec(self, number: int, index: dict[int, int], sources: list[Source]) -> NoveltySpec:
        return NoveltySpec(
            index=number,
            window=self._window,
            inputs=(FromSource(0),),
            schemas=(self._schema,),
            output_schema=self._output_schema(),
            instances=self._instances,
            **self._asked,  # type: ignore[arg-type]
        )

    def _output_schema(self) -> pa.Schema:
        kept = [field for field in self._schema if field.name != self._asked["terms"]]
        return pa.schema([*kept, pa.field(SIMILARITY, pa.float64())])

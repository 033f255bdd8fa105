"""`StreamNovelty`: the tuples that resemble no earlier tuple of their key."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from joinengine.api import checks
from joinengine.api.operators import StreamOperator
from joinengine.lab.queries.first_story.novelty_operator import Novelty
from joinengine.lab.queries.first_story.novelty_spec import SIMILARITY
from joinengine.layouts import LayoutChoice
from joinengine.model.aggregation import EventTime
from joinengine.model.columns import require_column
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import FromSource
from joinengine.spark.sources.inputs import Source


class TextColumns(NamedTuple):
    """The columns that novelty reads; `terms` is one of lists of distinct integers."""

    key: str
    terms: str
    time: str


class StreamNovelty(StreamOperator):
    """The tuples whose terms resemble none of the `history` tuples of their key before them.

    If the greatest cosine similarity of a tuple is at most `threshold`, the tuple is a result, with
    all other columns and the similarity, when the watermark has passed it. Only layouts that keep
    keys whole have the results of one process. Under candidate layouts and layouts that split keys
    an instance sees a part of each key, and finds more tuples novel.

    Raises InvalidRequest if a column is missing or the layout copies tuples.
    """

    def __init__(
        self,
        source: Source,
        columns: TextColumns,
        *,
        delay_us: int,
        history: int,
        threshold: float,
        layout: LayoutChoice,
        instances: int,
    ) -> None:
        key, terms, time = columns

        def make(index: int, given: FromSource, schema: pa.Schema, instances: int) -> Novelty:
            for name in columns:
                require_column(schema, name, "novelty")
            if schema.field(key).type != pa.int32():
                raise InvalidRequest(f"novelty: {key} must be a 32-bit integer; cast it")
            delay = checks.check_event_time(schema, (time,), delay_us, (source, time))
            kept = [field for field in schema if field.name != terms]
            return Novelty(
                index=index,
                key=key,
                terms=terms,
                history=history,
                threshold=threshold,
                window=EventTime(((time,), ()), (delay, None)),
                inputs=(given,),
                schemas=(schema,),
                output_schema=pa.schema([*kept, pa.field(SIMILARITY, pa.float64())]),
                instances=instances,
            )

        super().__init__(source, make, layout=layout, instances=instances)

"""`StreamOperator`: one stream and the user's own operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pyarrow as pa
from typing_extensions import override

from joinengine.api import checks
from joinengine.api.joins import schema_of_side
from joinengine.api.queries import StreamQuery, number_of
from joinengine.exchange.finishing import Finish
from joinengine.layouts import LayoutChoice, asked_or_auto
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import FromSource
from joinengine.operators.base import Operator
from joinengine.spark.sources.inputs import Source

#: (number in the query, input, its columns, instances) -> the operator.
MakeOperator = Callable[[int, FromSource, pa.Schema, int], Operator]


class StreamOperator(StreamQuery):
    """Your own operator over one stream, with the writer, layouts and guarantees of a join.

    `make(index, source, schema, instances)`: returns the operator (docs/operators.md).
    `layout`, `instances`: as in `StreamJoin`.

    Raises InvalidRequest, before anything runs, if the source is not a stream or the layout cannot
    serve the operator.
    """

    def __init__(
        self,
        source: Source,
        make: MakeOperator,
        *,
        layout: str | LayoutChoice | None = None,
        instances: int | None = None,
    ) -> None:
        checks.check_stream(source)
        self._source, self._make = source, make
        self._choice = asked_or_auto(layout)
        self._instances, self._is_sized = number_of(instances), instances is not None
        self._schema = schema_of_side(source)
        operator = make(0, FromSource(0), self._schema, self._instances)
        self._choice.check(operator.condition, self._instances)
        operator.policy.check(self._choice)
        self._output = operator.output_schema

    @override
    def _stepped(self, verb: str, written: tuple[Any, ...], add: Callable[..., Finish]) -> Self:
        raise InvalidRequest(
            f"{verb}: your own operator says itself which results it makes; write that in its "
            "tasks, or use transform"
        )

    def _flat(self) -> tuple[list[Any], list[Source]]:
        return [self], [self._source]

    def _spec(self, number: int, index: dict[int, int], sources: list[Source]) -> Operator:
        return self._make(number, FromSource(0), self._schema, self._instances)

    def _output_schema(self) -> pa.Schema:
        return self._output

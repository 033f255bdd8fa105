"""`StreamQuery`: the schema, the plan in words and the writer that all queries have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from joinengine.api import checks
from joinengine.api.latest import Latest
from joinengine.api.resolved import ResolvedJoin
from joinengine.api.result_steps import ResultSteps, Written
from joinengine.api.results_frames import to_df
from joinengine.api.writer import JoinWriter
from joinengine.exchange.finishing import Finish
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.arguments import check_count
from joinengine.model.conditions import Computed
from joinengine.model.errors import InvalidRequest
from joinengine.model.habits import QUERY, Helped
from joinengine.model.spelling import printed_lines
from joinengine.operators.base import QuerySpec
from joinengine.operators.multiway.chains import Planned, with_multiway
from joinengine.reporting.explain import explain
from joinengine.reporting.notebook import operators_html, page_part
from joinengine.spark.query.frame_sinks import Transform
from joinengine.spark.session.session import current, parallelism
from joinengine.spark.sources import types
from joinengine.spark.sources.inputs import Source, Table
from joinengine.spark.sources.own_streams import OwnStream


class StreamQuery(Helped):
    """The base of joins, aggregations and users' operators: a schema, a writer, a plan."""

    _instead = QUERY
    _choice: LayoutChoice
    _is_sized: bool
    _is_apart: bool = False
    _transform: Transform | None = None
    _finish: Finish | None = None
    _steps: tuple[Written, ...] = ()
    _made_of: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Keeps the arguments, so that the same query can be made over other sources."""
        made = object.__new__(cls)
        made._made_of = arguments, named
        return made

    def _over(self, sources: Mapping[int, Source]) -> Self:
        """The same query over other sources; `sources`: id of a source -> its replacement."""

        def moved(source: Any) -> Any:
            if isinstance(source, Latest):
                return source.over(sources)
            return (
                source._over(sources)
                if isinstance(source, StreamQuery)
                else sources.get(id(source), source)
            )

        arguments, named = self._made_of
        made = type(self)(*map(moved, arguments), **{k: moved(v) for k, v in named.items()})
        for verb, written in self._steps:
            made = getattr(made, verb)(*written)
        made._transform = self._transform
        return made

    def __repr__(self) -> str:
        try:
            query = self.query()
        except InvalidRequest:
            return f"<{type(self).__name__}>"
        last, choice = query.operators[-1], self._choice
        account = last.account()
        parts = [str(account[part]) for part in ("how", "on", "within") if account.get(part)]
        parts += [] if self._finish is None else self._finish.lines
        return printed_lines(
            f"<{type(self).__name__} of {' and '.join(query.sources)}: {', '.join(parts)}; "
            f"layout {choice.label} on {last.instances} instances>"
        )

    def _repr_html_(self) -> str:
        """The query for a notebook: sides, conditions, windows, layouts, when tuples leave."""
        return page_part(type(self).__name__, operators_html(*self._planned()))

    @property
    def schema(self) -> Any:
        """The Spark schema of the results, before `transform`."""
        return types.spark_schema(self._results.schema)

    @property
    def writeStream(self) -> JoinWriter:
        """A writer, which chooses the sink and starts the query."""
        return JoinWriter(self._resolved(), of=repr(self))

    @property
    def _spark(self) -> SparkSession:
        """The session of the first stream. Joins ask for it before they know their operators."""
        return session_of(next(source for source in self._flat()[1] if not checks.is_table(source)))

    def _resolved(self, *, as_written: bool = False) -> ResolvedJoin:
        """The query with all that a start needs; `as_written`: without multiway joins."""
        sources = self._flat()[1]
        planned = self._as_written() if as_written else self._planned()
        return ResolvedJoin(
            spark=self._spark,
            query=planned.query,
            choices=planned.choices,
            sources=sources,
            schema=self._results.schema,
            transform=self._transform,
            over=lambda sources: self._over(sources)._resolved(as_written=as_written),
            as_written=None if as_written else lambda: self._resolved(as_written=True),
        )

    def where(self, predicate: str) -> Self:
        """Keep only results for which `predicate` is true; it may name all their columns.

        `predicate`: SQL (docs/predicates.md), in the time zone of the Spark session. It is checked
        when results are made, so it limits neither the state nor the pairs that are compared: a
        condition on one input belongs in `left_where` or `right_where`, a condition on pairs in
        `where` of the join. Raises InvalidRequest for anything else.
        """
        return self._stepped("where", (predicate,), self._results.where)

    def withColumn(self, name: str, expression: str) -> Self:
        """Add a column to the results, or replace the column that has its name.

        `expression`: SQL (docs/predicates.md) over the columns of the results. Raises
        InvalidRequest for anything else.
        """
        return self._stepped("withColumn", (name, expression), self._results.with_column)

    def select(self, *columns: str | list[str] | Mapping[str, str]) -> Self:
        """Keep only these columns of the results: names, or a mapping of new names to old ones.

        A join under `changes` keeps `_change` as its last column. Raises InvalidRequest for a
        column that does not exist.
        """
        return self._stepped("select", columns, lambda *given: self._results.select(given))

    def _stepped(self, verb: str, written: tuple[Any, ...], add: Callable[..., Finish]) -> Self:
        if self._transform is not None:
            raise InvalidRequest(
                f"transform: {verb} cannot follow it, because Spark transforms what leaves; call "
                f"{verb} first"
            )
        other = self._copy()
        other._finish, other._steps = add(*written), (*self._steps, (verb, written))
        return other

    def _copy(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__ = dict(self.__dict__)
        return other

    @property
    def _results(self) -> ResultSteps:
        """The steps behind the last operator."""
        return ResultSteps(self._spark, self._output_schema(), self._finish, self._is_changelog)

    def transform(self, function: Transform) -> Self:
        """Apply a stateless DataFrame function to the results of each batch, before the sink."""
        other, before = self._copy(), self._transform
        other._transform = function if before is None else lambda frame: function(before(frame))
        return other

    def to_df(self, checkpointLocation: str, **options: Any) -> DataFrame:
        """The results as a streaming DataFrame, for any step and any sink of Spark.

        Each result is in it exactly once. The query starts when another query reads the DataFrame,
        and ends with it. One query may read it; for another one, call `to_df` again, with another
        folder.

        `checkpointLocation`: the folder for the state of this query, which holds the results until
        Spark has committed them. The query that reads has a checkpoint of its own.
        `options`: options of joinengine, as in `writeStream.option` (docs/options.md).

        Raises InvalidRequest for unknown options, and for a path that cannot be a folder. If this
        query fails, the query that reads fails with the same error.
        """
        return to_df(self.writeStream.options(checkpointLocation=checkpointLocation, **options))

    def explain(self) -> str:
        """The operators, their layouts, and when a row leaves the state, as text."""
        return explain(*self._planned())

    def query(self) -> QuerySpec:
        """The whole query as data: this operator and the operators that it reads, all numbered.

        Joins in a chain on one key are one operator.
        """
        return self._planned().query

    def _planned(self) -> Planned:
        """The query and the layouts of its operators, with multiway joins where there can be."""
        written = self._as_written()
        joins = enumerate(self._flat()[0])
        apart = {n for n, join in joins if isinstance(join, StreamQuery) and join._is_apart}
        return with_multiway(*written, apart)

    def _as_written(self) -> Planned:
        """The query and the layouts of its operators, one for each join."""
        joins, sources = self._flat()
        index = {id(join): number for number, join in enumerate(joins)}
        specs = tuple(join._spec(number, index, sources) for number, join in enumerate(joins))
        tables = [n for n, source in enumerate(sources) if checks.is_table(source)]
        described = tuple(_describe(source) for source in sources)
        unsized = (number for number, join in enumerate(joins) if not join._is_sized)
        read_first = [join._first for join in joins]
        first = (
            n for n, source in enumerate(sources) if any(source is other for other in read_first)
        )
        read = frozenset(tables), frozenset(unsized), frozenset(first)
        choices = tuple(join._choice for join in joins)
        return Planned(QuerySpec(specs, described, *read), choices)

    @property
    def _is_changelog(self) -> bool:
        """Whether the last column of the results says how many of a row come, or go."""
        return False

    @property
    def _first(self) -> Source | None:
        """The source that is read before all others, as far as it goes at the start; None: none."""
        return None

    def _flat(self) -> tuple[list[Any], list[Source]]:
        """The operators in the order in which they run, and the distinct sources."""
        raise NotImplementedError

    def _output_schema(self) -> pa.Schema:
        raise NotImplementedError


def session_of(source: Source | StreamQuery) -> SparkSession:
    """The session in which a source, or the first stream of a query, was made."""
    if isinstance(source, StreamQuery):
        return source._spark
    spark: SparkSession = source.sparkSession if isinstance(source, DataFrame) else source.spark
    return spark


def number_of(instances: int | None) -> int:
    """The number of instances asked for, or one per core, which a new checkpoint gets.

    More per core cost more than they help, since `auto` divides a heavy key over any number (docs/
    decisions/0029-as-many-instances-as-cores.md).
    """
    if instances is not None:
        return check_count(instances, "instances")
    spark = current()
    if spark is None:
        raise InvalidRequest("instances: no Spark session is active; give instances=, or start one")
    return parallelism(spark)


def _describe(source: Source) -> str:
    if isinstance(source, OwnStream):
        return f"{source.description}{_steps(source)}"
    if isinstance(source, Table):
        return f"table {source.path}"
    return "table" if checks.is_table(source) else "dataframe"


def _steps(source: OwnStream) -> str:
    """The steps on tuples as they are read, in words; their order counts with computed columns."""
    steps = source.reading.steps
    if not any(isinstance(step, Computed) for step in steps):
        return "" if source.reading.where is None else f" where {source.reading.where}"
    return "".join(
        f" with {step.name} = {step.text}" if isinstance(step, Computed) else f" where {step.text}"
        for step in steps
    )

"""A streaming decision tree: histograms of each attribute, class and leaf, which split the leaves.

    SELECT attribute, class, leaf, histogram(value, 64) AS spread FROM messages
    GROUP BY attribute, class, leaf

An example has a class and a value of each attribute. It is a number of messages, one for each of
the attributes that it tells; which ones is Zipf's. The source knows the tree, and writes the leaf
of the example into its messages. A level of the tree is one run over new messages: the instances
make the histograms, the aggregators merge them, and each leaf is split where the merged histograms
tell its classes apart best. The next run has the new leaves.
Source: Ben-Haim and Tom-Tov, JMLR 2010; keyed by what is counted instead of shuffled: Nasir et al.,
ICDE 2015, section 4.1 (extended text). The histograms are joinengine's (kernels.binning), so the
tree is that of one process; a tuple is routed by attribute, class and leaf, not by attribute.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine import StreamAggregate
from joinengine.lab.queries.learning import EDGES, check_whole, partial_results, settings
from joinengine.lab.queries.named_query import MERGING, Conclusion, Options, Query
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.queries.trees import ROOT, Counted, Ints, Tree, counted, grown
from joinengine.lab.tpch.skew import shuffled
from joinengine.lab.tpch.stream import RecordedStream, time_array

#: Messages of a level at scale 1, messages of an example, and attributes.
MESSAGES, TOLD, ATTRIBUTES = 2_000_000, 8, 100
#: The class of an example follows from the three most frequent attributes, with these weights; for
#: one example in ten it is random.
PARTS, NOISE = (0.5, 0.3, 0.2), 0.1
#: Examples that are classified at the end, at most.
NEW = 2_000
#: Values are from 0 to below this.
SPAN = 100.0


@dataclass(frozen=True)
class DecisionTree(Query):
    """The histograms of one level, and the tree that grows from them."""

    tree: Tree = ROOT
    level: int = 1

    name = "decision-tree"
    summary = "histograms of each attribute, class and leaf, from which a tree grows level by level"
    source = "Ben-Haim and Tom-Tov, JMLR 2010, in Nasir et al., ICDE 2015; generated"
    aggregates = True
    concludes = True
    own = ("bins", "classes", "depth", *MERGING)

    @property
    @override
    def part(self) -> str:
        return f"level-{self.level}"

    @override
    def stream(self, options: Options) -> SyntheticSpec:
        check_whole(self.name, options)
        classes = options.own_of("classes")
        columns = _Messages(self.tree, self.level, classes)
        return options.synthetic(
            *("messages", MESSAGES, columns),
            classes=classes,
            level=self.level,
            tree=self.tree.lines,
        )

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamAggregate:
        return StreamAggregate(
            table_stream(spark, recorded, "messages"),
            by=["attribute", "class", "leaf"],
            aggregates={"spread": f"histogram(value, {options.own_of('bins')})"},
            **settings("m_ts", options),
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        """The bins of each group in SQL; values are not below 0.

        `e`: the least power of two above the values of a group, so 2^(e - 53) is the finest grid.
        `coarser`: the B-th greatest number of bits in which neighbours differ there.
        """
        group, most = "attribute, class, leaf", options.own_of("bins")
        bits = f"length(bin(xor(cell, lag(cell) over (partition by {group} order by cell))))"
        width = "pow(2.0, e - 53 + coarser)"
        return (
            f"with messages as (from '{recorded.files('messages')}'), heads as (select {group}, "
            f"min(e) as e from (select {group}, max(value) as most from messages group by all) "
            f"join range(-60, 8) powers(e) on most < pow(2.0, e) group by {group}), cells as "
            f"(select {group}, e, floor(value / pow(2.0, e - 53))::bigint as cell, count(*) as n "
            f"from messages join heads using ({group}) group by all), grids as (select {group}, "
            f"coalesce((list(bits order by bits desc) filter (where bits is not null))"
            f"[{most}], 0) as coarser from (select {group}, {bits} as bits from cells) "
            f"group by {group}), bins as (select {group}, {width} as width, cell >> coarser as "
            f"bin, sum(n)::bigint as n from cells join grids using ({group}) group by all) "
            f"select {group}, list({{lower: bin * width, upper: (bin + 1) * width, n: n}} order by "
            f"bin) as spread, {EDGES} from bins group by {group}"
        )

    @override
    def conclude(self, results: pa.Table, report: dict[str, Any], options: Options) -> Conclusion:
        classes = options.own_of("classes")
        tree = grown(self.tree, _by_leaf(results, classes))
        histograms, triplets = partial_results(report), results.num_rows
        said = [
            f"level {self.level}: {histograms:,} histograms at the instances for {triplets:,} "
            f"triplets of attribute, class and leaf: {histograms / triplets:.2f} for each"
        ]
        entries = {"histograms": histograms, "keys": triplets, "tree": tree.lines}
        following = replace(self, tree=tree, level=self.level + 1)
        if self.level < options.own_of("depth") and tree.splits != self.tree.splits:
            return Conclusion(entries, said, following)
        drawn = _Examples(self.stream(options), classes)
        examples = drawn.of_level(following.level)[:NEW]
        right = float(
            (tree.classes_of(examples, drawn.values) == drawn.classes_of(examples)).mean()
        )
        said += [*tree.lines, f"{right:.1%} of {len(examples):,} new examples get their class"]
        return Conclusion({**entries, "classes": classes, "accuracy": right}, said)


def _by_leaf(results: pa.Table, classes: int) -> dict[int, dict[int, Counted]]:
    """Leaf -> attribute -> its histograms."""
    spreads = defaultdict[int, dict[int, dict[int, Any]]](lambda: defaultdict(dict))
    for row in results.to_pylist():
        spreads[row["leaf"]][row["attribute"]][row["class"]] = row["spread"]
    return {
        leaf: {attribute: counted(by_class, classes) for attribute, by_class in ones.items()}
        for leaf, ones in spreads.items()
    }


@dataclass(frozen=True)
class _Messages:
    """The columns of the stream of a level."""

    tree: Tree
    level: int
    classes: int

    def __call__(self, spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
        drawn = _Examples(spec, self.classes)
        examples = drawn.of_level(self.level)[rows // TOLD]
        attributes = drawn.attributes(rows + self.level * spec.rows)
        return pa.table(
            {
                "attribute": pa.array(attributes.astype(np.int32)),
                "class": pa.array(drawn.classes_of(examples).astype(np.int32)),
                "leaf": self.tree.leaves_of(examples, drawn.values),
                "value": drawn.values(attributes, examples),
                "m_ts": time_array(times),
            }
        )


@dataclass(frozen=True)
class _Examples:
    """Examples by their numbers."""

    spec: SyntheticSpec
    classes: int

    def of_level(self, level: int) -> Ints:
        """The examples of a level: no other level has them."""
        each = -(-self.spec.rows // TOLD)
        return np.arange(level * each, (level + 1) * each)

    def attributes(self, rows: Rows) -> Ints:
        """The attribute that each message tells."""
        return self._by_rank()[self.spec.ranks("attribute", rows, ATTRIBUTES)]

    def values(self, attributes: Ints, examples: Ints) -> NDArray[np.float64]:
        """(n,) the value of an attribute of an example."""
        return SPAN * self.spec.uniform("value", examples * ATTRIBUTES + attributes)

    def classes_of(self, examples: Ints) -> Ints:
        """(n,) the class of each example: by a sum of values, or by chance."""
        score = np.zeros(len(examples))
        for part, attribute in zip(PARTS, self._by_rank(), strict=False):
            score += part * self.values(np.full(len(examples), attribute), examples) / SPAN
        chance = self.spec.uniform("class", examples)
        score = np.where(self.spec.uniform("noise", examples) < NOISE, chance, score)
        return (score * self.classes).astype(np.int64)

    def _by_rank(self) -> Ints:
        return shuffled(self.spec.seed, "messages: attributes", ATTRIBUTES)

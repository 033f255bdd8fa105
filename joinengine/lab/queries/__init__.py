"""The queries of the command line: each with its SQL, its streams and its oracle."""

from __future__ import annotations

from collections.abc import Mapping

from joinengine.lab.queries.bnci import Bnci
from joinengine.lab.queries.changed_orders import ChangedOrders
from joinengine.lab.queries.decision_tree import DecisionTree
from joinengine.lab.queries.eq5 import Eq5
from joinengine.lab.queries.first_story import FirstStory
from joinengine.lab.queries.naive_bayes import NaiveBayes
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.nexmark_q3 import NexmarkQ3
from joinengine.lab.queries.nexmark_q8 import NexmarkQ8
from joinengine.lab.queries.nexmark_q9_join import NexmarkQ9Join
from joinengine.lab.queries.nexmark_q20 import NexmarkQ20
from joinengine.lab.queries.nexmark_q23 import NexmarkQ23
from joinengine.lab.queries.q5 import Q5
from joinengine.lab.queries.skewed_join import SkewedJoin
from joinengine.lab.queries.stock import Stock
from joinengine.lab.queries.supplier_prices import AsOfPrices, LatestPrices
from joinengine.lab.queries.topk import Topk
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import meant

#: To add a query, write a module and add a line here.
QUERIES: Mapping[str, Query] = {
    query.name: query
    for query in (
        *(Eq5(), Bnci(), Q5(), AsOfPrices(), LatestPrices(), ChangedOrders(), Topk(), Stock()),
        *(FirstStory(), NaiveBayes(), DecisionTree()),
        *(NexmarkQ3(), NexmarkQ8(), NexmarkQ9Join(), NexmarkQ20(), NexmarkQ23(), SkewedJoin()),
    )
}

__all__ = ["QUERIES", "Options", "Query", "find"]


def find(name: str) -> Query:
    """A query by its name. Raises InvalidRequest, with a list of the queries, if there is none."""
    if name not in QUERIES:
        raise InvalidRequest(
            f"query: expected one of {', '.join(QUERIES)}, found {name!r}{meant(name, QUERIES)}"
        )
    return QUERIES[name]

"""Nexmark q3: sellers of three states with auctions of one category, over the full history.

    SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
    WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')

Nothing is left out. The results also have the key and the category.
Source: nexmark/nexmark, query 3.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.nexmark_query import CATEGORY, Nexmark
from joinengine.lab.tpch.stream import RecordedStream

_CHOSEN = f"category = {CATEGORY}"
_NEAR = "state in ('OR', 'ID', 'CA')"


class NexmarkQ3(Nexmark):
    """auction join person on the seller."""

    name = "nexmark-q3"
    summary = "auctions of one category joined with their sellers of three states, full history"
    source = "Nexmark, query 3; generated"
    tables = ("auction", "person")

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        return StreamJoin(
            self.columns(spark, recorded, "auction", "id seller category"),
            self.columns(spark, recorded, "person", "id name city state"),
            on=equi("seller", "id"),
            left_where=_CHOSEN,
            right_where=_NEAR,
            suffixes=("_auction", "_person"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        auctions, persons = recorded.files("auction"), recorded.files("person")
        return (
            f"select a.id, seller, category, p.id, name, city, state from '{auctions}' a "
            f"join '{persons}' p on seller = p.id where {_CHOSEN} and {_NEAR}"
        )

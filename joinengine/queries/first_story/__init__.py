"""First stories: a query that brings an operator of its own (docs/operators.md).

`query` is the query, `novelty` what a program writes, `operator` what the driver asks, `task` what
tasks do, `similarity` the kernel.
"""

from joinengine.queries.first_story.query import FirstStory

__all__ = ["FirstStory"]

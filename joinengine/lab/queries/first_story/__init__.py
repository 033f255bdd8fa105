"""First stories: a query that brings an operator of its own (docs/operators.md).

`query` is the query, `novelty` the stream that a program builds, `operator` the answers to the
driver, `task` the work of a task, `similarity` the kernel.
"""

from joinengine.lab.queries.first_story.story_query import FirstStory

__all__ = ["FirstStory"]

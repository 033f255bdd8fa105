"""The Python face: `StreamJoin` and `StreamAggregate`.

Both check everything that can be known before a job starts, at the line that says it; they do
nothing until their writer is started.
"""

from joinengine.api.aggregates import StreamAggregate
from joinengine.api.joins import StreamJoin

__all__ = ["StreamAggregate", "StreamJoin"]

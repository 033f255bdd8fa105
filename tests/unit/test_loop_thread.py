"""A running query without Spark: which error it reports if both of its parts fail."""

from __future__ import annotations

from threading import Event
from unittest.mock import Mock

import pytest

from joinengine.model.errors import DamagedState, JoinEngineError
from joinengine.spark.query.loop_thread import Identity, Running


class Ended:
    """A loop that ends with `error` once `begin` is set."""

    is_here, has_ended = False, True

    def __init__(self, error):
        self.error, self.begin = error, Event()

    def run(self):
        self.begin.wait()
        raise self.error

    def process_all(self):
        """Nothing is left to do."""


@pytest.mark.parametrize("error", [DamagedState("run file x is missing"), ValueError("bad")])
def test_processing_all_reports_why_the_loop_ended_and_not_that_spark_was_stopped(error):
    loop, frames = Ended(error), Mock()
    query = Running(Mock(), Identity("q"), lambda _: loop, Mock(), Mock(), frames, Mock())

    def cut_short():
        loop.begin.set()  # Spark's query may notice before the loop has noted its own error
        raise JoinEngineError("the query failed: java.lang.InterruptedException")

    frames.process_all = cut_short
    query.start()
    with pytest.raises(JoinEngineError, match=str(error)) as caught:
        query.process_all()
    assert caught.value is query.error()

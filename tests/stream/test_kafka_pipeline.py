"""The pipeline of examples/kafka, as a user runs it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.kafka.messages import NAMES, SIDES
from benchmarks.kafka.topics import make
from tests.brokers import consume, produce
from tests.waiting import soon

BEGIN_S = 1_700_000_000
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "kafka" / "pipeline.py"
#: Clicks and purchases of some users, over an hour and a bit.
COUNTS, USERS, SPAN_S = {"clicks": 1000, "purchases": 200}, 50, 4000

pytestmark = pytest.mark.spark


def rows_of(side):
    """The rows of a side, in the order of their times."""
    key, time, value = NAMES[side]
    rng = random.Random(side)
    for number in range(COUNTS[side]):
        at = datetime.fromtimestamp(BEGIN_S + number * SPAN_S // COUNTS[side], UTC)
        yield {key: rng.randrange(USERS), time: at.isoformat(), value: rng.randrange(1000)}


def truth(rows):
    """(user, click's page, purchase's amount) of the matches, by a nested loop over users."""
    bought = {}
    for row in rows["purchases"]:
        bought.setdefault(row["buyer_id"], []).append(row)
    return Counter(
        (click["user_id"], click["page"], purchase["amount"])
        for click in rows["clicks"]
        for purchase in bought.get(click["user_id"], [])
        if 0 <= seconds(purchase["bought_at"]) - seconds(click["clicked_at"]) <= 3600
    )


def seconds(text):
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture
def topics(broker):
    """Those that the example names."""
    names = [*SIDES, "matches"]
    make(broker, 2, *names)
    yield
    for gone in broker.admin.delete_topics(names, operation_timeout=30).values():
        gone.result(30)
    soon(lambda: not {*names} & {*broker.admin.list_topics(timeout=30).topics})


@pytest.mark.slow
@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("starts", [1, 2])
def test_topics_are_joined_and_a_second_start_adds_only_what_is_new(broker, tmp_path, starts):
    command = [sys.executable, EXAMPLE, broker.servers, tmp_path / "checkpoint", "--once"]
    rows = {side: list(rows_of(side)) for side in SIDES}
    for start in range(starts):
        for side, all_rows in rows.items():
            count = len(all_rows) // starts
            some = all_rows[start * count : (start + 1) * count]
            produce(broker, side, [json.dumps(one) for one in some])
        subprocess.run(command, check=True, timeout=240)
    found = consume(broker, "matches")
    matches = [json.loads(one.value()) for one in found]
    expected = truth(rows)
    assert len(matches) > 100
    assert Counter((one["user_id"], one["page"], one["amount"]) for one in matches) == expected
    assert [one.key() for one in found] == [str(one["user_id"]).encode() for one in matches]

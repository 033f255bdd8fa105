"""Novelty under layouts that keep keys whole, against its meaning, however tuples come and move."""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.queries.first_story.novelty import StreamNovelty, TextColumns
from joinengine.layouts import LAYOUTS
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import TIME, LocalQuery
from tests.laws.cases import CHOICES, each_router, feed, kills, relaxed, sizes, ways

WHOLE = [
    name for name, choice in LAYOUTS.items() if choice.keeps_keys_whole and choice.serves_aggregates
]
TEXTS = pa.schema(
    [("text", pa.int64()), ("k", pa.int32()), ("terms", pa.list_(pa.int64())), ("ts", TIME)]
)
SOURCE = Stream(None, {"kind": "recorded", "path": "texts"}, Reading(TEXTS))


@st.composite
def texts(draw):
    """Batches of (text, key, terms, time); no two of one time, some disorder."""
    counts = draw(st.lists(sizes(40), min_size=1, max_size=6))
    seed = draw(st.integers(0, 10**9))
    n_keys = draw(st.sampled_from([1, 3, 12]))
    return [(_texts(seed, batch, count, n_keys), []) for batch, count in enumerate(counts)]


def _texts(seed, batch, count, n_keys):
    rng = random.Random(f"{seed} {batch}")
    found = []
    for number in range(count):
        text = 100 * batch + number
        terms = rng.sample(range(12), rng.randint(0, 4))
        time = 1000 * (100 * batch + rng.randint(-150, 150)) + text
        found.append((text, rng.randrange(n_keys), terms, time))
    return found


#: Three batches in which every second text has key 0.
HOT_TEXTS = [
    (
        [
            (100 * b + i, 0 if i % 2 else i, [i % 5, i % 7], 1000 * (100 * b + i) + i)
            for i in range(24)
        ],
        [],
    )
    for b in range(3)
]


class Texts(LocalQuery):
    """A query over texts alone."""

    def run_tuples(self, batch, left, right, map_tasks=2):
        frame = []
        for task in range(map_tasks):
            columns = (
                zip(*left[task::map_tasks], strict=True) if left[task::map_tasks] else [[]] * 4
            )
            arrays = [pa.array(list(c), f.type) for c, f in zip(columns, TEXTS, strict=True)]
            frame.append([(0, pa.RecordBatch.from_arrays(arrays, schema=TEXTS))])
        self.run(batch, frame)


def alike(a, b):
    norm = math.sqrt(len(a) * len(b))
    return len(set(a) & set(b)) / norm if norm else 0.0


def novel(found, history, threshold):
    """(text, key, time, similarity) of each text that resembles none of those before it."""
    results, ordered = Counter(), sorted(found, key=lambda text: text[3])
    for i, (text, key, terms, time) in enumerate(ordered):
        before = [other for other in ordered[:i] if other[1] == key][-history:]
        best = max((alike(terms, other[2]) for other in before), default=0.0)
        if best <= threshold:
            results[text, key, time, best] += 1
    return results


def novelty(layout, history, delay_us=300_000):
    return StreamNovelty(
        SOURCE,
        TextColumns("k", "terms", "ts"),
        delay_us=delay_us,
        history=history,
        threshold=0.4,
        layout=CHOICES[layout],
        instances=3,
    )


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", each_router(WHOLE))
@relaxed
@example(
    batches=HOT_TEXTS,
    history=3,
    schedule={},
    lazy=False,
    kills={(1, "joined")},
    twice=True,
    way={},
)
@given(
    batches=texts(),
    history=st.sampled_from([1, 3, 500]),
    schedule=st.dictionaries(
        st.integers(1, 5),
        st.lists(
            st.builds(
                Relayout, st.none() | st.sampled_from(WHOLE).map(CHOICES.get), st.integers(1, 6)
            ),
            min_size=1,
            max_size=1,
        ),
        max_size=2,
    ),
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    way=ways,
)
def test_every_tuple_is_judged_as_in_one_process(
    layout, batches, history, schedule, lazy, kills, twice, way
):
    plan = novelty(layout, history)
    with tempfile.TemporaryDirectory() as folder:
        query = Texts(
            folder,
            plan.query(),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice, **way),
            settings=Settings(schedule=schedule, lazy=lazy),
        )
        feed(query, batches, kills)
        query.finish(len(batches))
        assert query.output() == novel([t for left, _ in batches for t in left], history, 0.4)
        assert query.state.shelves.is_empty
        assert query.state.late_rows == 0


def test_a_text_of_the_time_of_the_watermark_is_judged_when_that_has_passed(tmp_path):
    batches = [
        [(1, 0, [1, 2], 5_000)],
        [(2, 0, [3, 4], 4_000)],  # the watermark of this batch: not late, and not yet due
        [(3, 0, [5], 9_000)],
        [],
    ]
    query = Texts(tmp_path, novelty("hash", 9, delay_us=1_000).query(), "hash")
    for number, found in enumerate(batches):
        query.run_tuples(number, found, [])
    assert sorted(row[0] for row in query.output()) == [1, 2]
    query.finish(len(batches))
    assert query.output() == novel([text for found in batches for text in found], 9, 0.4)


def test_texts_that_moved_away_and_back_are_judged_once(tmp_path):
    """A key comes back to its first home, whose runs still hold what it left there."""
    rng, batches, serial, told = random.Random(3), [], 0, Counter()
    for batch in range(20):  # other keys are hot in each, so that LPTF deals all of them out anew
        found = []
        for _ in range(60):
            serial += 1
            key = rng.choice([batch % 5, (3 * batch + 1) % 7, rng.randrange(30)])
            told[key] += 1  # resembles the last but one; found twice, the last would hide it
            found.append((serial, key, [told[key] % 2], 1_000 * serial))
        batches.append(found)
    query = Texts(tmp_path, novelty("lptf", 2, delay_us=100_000).query(), "lptf")
    for number, found in enumerate(batches):
        query.run_tuples(number, found, [])
    assert sum(join.moved.rows for record in query.records for join in record.joins) > 100
    query.finish(len(batches))
    assert query.output() == novel([text for found in batches for text in found], 2, 0.4)
    joins = [join for record in query.records for join in record.joins]
    assert sum(join.state.expired_rows for join in joins) == serial
    assert {"open", "sort", "probe", "merge", "count"} <= query.records[0].work_s.keys()

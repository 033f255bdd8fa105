"""Cases of the laws: streams, windows, layouts at their most nervous, kills, and oracles."""

from __future__ import annotations

import math
import os
import random
from collections import Counter, defaultdict
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from joinengine.driver.settings import MEMORY_PER_TASK
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import Planned
from joinengine.model.keys import PAIR, U_ONE, Fragment, Mode, Placement, Side
from joinengine.model.windows import INT_MAX, INT_MIN, Sliding, Within, within
from joinengine.state.wished import Relayout
from tests.harness import Killed
from tests.reference.protocol import Disk, Engine, Layout, Manifest, Row

#: The planners at their most nervous: they re-plan for the smallest imbalance and gain.
NERVOUS = {"imbalance": 0.0, "threshold": 0.0, "min_gain": 0.0, "intervals": 1, "payback": 0.0}
CHOICES = {
    name: choice(**{f.name: NERVOUS[f.name] for f in fields(choice) if f.name in NERVOUS})
    for name, choice in LAYOUTS.items()
}
#: One layout of each kind of router, which laws of the engine try every time; the others route as
#: one of these does, and are tried with the slow tests. (Planners have laws of their own.)
FAMILIES = ("auto", "mnrt", "mixed", "ftlb", "pkg", "w-choices", "dynamic", "bi-k", "shuffle")


def each_router(names):
    """Layouts by `names`, for a law of the engine; those outside FAMILIES with the slow tests."""
    marks = ((), pytest.mark.slow)
    return [pytest.param(name, marks=marks[name not in FAMILIES]) for name in names]


EACH_ROUTER = each_router(LAYOUTS)
PLANNED = {name for name, choice in LAYOUTS.items() if issubclass(choice, Planned)}
SPLITTING = {"auto", "qmmp", "mnrt"}
#: Layouts that fit their shape to the sizes of the streams.
SHAPED = {"dynamic", "bi", "bi-k"}
#: Layouts that never change of themselves.
STEADY = {"hash", "shuffle"}

STEPS = ("routed", "joined", "committed", "delivered")

#: How many cases a law tries for each layout, always the same; `make test-all` tries more, others
#: each time.
EXAMPLES = int(os.environ.get("JOINENGINE_EXAMPLES", "2"))
relaxed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def tries(most):
    """For a law that tries `most` cases in `make test-all`: a fifth of them, if always the same."""
    return settings(max_examples=most if "JOINENGINE_EXAMPLES" in os.environ else most // 5)


def enough(layout, instances):
    """At least as many instances as the layout needs."""
    return max(instances, 2) if layout in {"bi", "bi-k", "ftlb"} else instances


def sizes(most):
    """How many tuples a side has in a batch: none, one, or some."""
    return st.just(0) | st.just(1) | st.integers(0, most)


#: Where the first and the last moments of event time are within the reach of streams.
ENDS = INT_MIN + 150, INT_MAX - 760
#: As long as bounds may be.
LONGEST = f"{INT_MAX} us"


@st.composite
def streams(draw, *, max_rows=30):
    """Batches of (left, right) tuples; one hot key, NULL keys, NULL times, some disorder.

    The number of batches and tuples is drawn, so that a failing case shrinks to few; the content
    follows from a seed and that number, which costs less than to draw each value. Event
    time may lie at either end of what 64 bits hold, and most keys may be NULL.
    """
    counts = draw(st.lists(st.tuples(sizes(max_rows), sizes(max_rows)), min_size=1, max_size=7))
    seed = draw(st.integers(0, 10**9))
    drawn = Content(
        hot=draw(st.sampled_from([0.0, 0.5, 1.0])),
        n_keys=draw(st.sampled_from([1, 4, 20])),
        start=draw(st.sampled_from([0, 0, *ENDS])),
        nulls=draw(st.sampled_from([0.03, 0.6])),
    )
    return [
        tuple(_tuples(drawn, seed, batch, side, counts[batch][side]) for side in PAIR)
        for batch in range(len(counts))
    ]


class Content(NamedTuple):
    """The content of a stream: part of tuples with key 0, keys, first time, part without a key."""

    hot: float
    n_keys: int
    start: int
    nulls: float


def _tuples(content, seed, batch, side, count):
    rng = random.Random(f"{seed} {batch} {side}")
    found = []
    for number in range(count):
        key = 0 if rng.random() < content.hot else rng.randrange(content.n_keys)
        time = content.start + 100 * batch + rng.randint(-150, 150)
        nothing = rng.random(), rng.random()
        found.append(
            (
                None if nothing[0] < content.nulls else key,
                1000 * (2 * batch + side) + number,
                None if nothing[1] < 0.03 else time,
            )
        )
    return found


def _hot(key=0):
    """Half of the left tuples have one key, and there are few right ones: every planner acts."""
    left = [
        [(key + i * (1 - i % 2), 100 * b + i, 100 * b + i) for i in range(24)] for b in range(3)
    ]
    right = [[(key + 3 * i, 500 + 10 * b + i, 100 * b + i) for i in range(4)] for b in range(3)]
    return list(zip(left, right, strict=True))


HOT = _hot()
#: On 4 instances key 0 is alone with what has to stay with it, and `ftlb` acts on another one.
HOT_AMONG_OTHERS = _hot(3)

bounds = st.tuples(st.sampled_from([-200, -50, 0, 70]), st.sampled_from([0, 60, 300])).map(
    lambda ends: (f"{ends[0]} us", f"{ends[0] + ends[1]} us")
) | st.sampled_from([("0 us", LONGEST), (f"-{LONGEST}", LONGEST), (f"-{LONGEST}", "-50 us")])
open_bounds = st.sampled_from([("0 us", None), ("-50 us", None), (None, "70 us"), (None, "-50 us")])
windows = st.none() | st.builds(
    lambda ends, delay: within("lt", "rt", lower=ends[0], upper=ends[1], delay=delay),
    bounds | open_bounds,
    st.sampled_from(["0 us", "100 us", "400 us", "106751991 days"]),
)
#: Filters of the two sides, and what they let in.
FILTERS = {
    (None, None): lambda side, row: True,
    ("lv % 3 > 0", None): lambda side, row: side is Side.RIGHT or row[1] % 3 > 0,
    ("lk = 0", "rv % 2 = 0 or rk is null"): lambda side, row: (
        row[0] == 0 if side is Side.LEFT else row[1] % 2 == 0 or row[0] is None
    ),
}
#: How tuples travel: in files, in packets, or in packets with rows whose order differs by attempt.
SHUFFLED = {"exchange": ExchangeKind.SHUFFLE}
DISORDERED = {**SHUFFLED, "disorder": True}
#: What a task may hold, in bytes: as it is, or some tuples alone.
memories = st.sampled_from([MEMORY_PER_TASK, 600])

ways = st.sampled_from([{}, SHUFFLED, DISORDERED])
filters = st.sampled_from(list(FILTERS))
kills = st.sets(st.tuples(st.integers(0, 6), st.sampled_from(STEPS)), max_size=3)
wishes = st.builds(
    Relayout,
    st.none() | st.sampled_from(list(LAYOUTS)).map(CHOICES.get),
    st.none() | st.integers(4, 11),
)
schedules = st.dictionaries(
    st.integers(1, 6), st.lists(wishes, min_size=1, max_size=2), min_size=1, max_size=4
)


def skewed_batches(n=6, seed=3):
    """Full batches of both sides, 120 and 60 tuples, of which two in five have key 0."""
    rng = random.Random(seed)
    serial = iter(range(10**6))

    def side(size):
        keys = (0 if rng.random() < 0.4 else rng.randrange(40) for _ in range(size))
        return [(key, next(serial), 0) for key in keys]

    return [(side(120), side(60)) for _ in range(n)]


def feed(query, batches, kills=(), before=lambda name: None):
    """Feed the batches as Spark does: a batch that was killed comes again, after a restart.

    `before(name)` is called before each step.
    """
    killed = set()
    for number, (left, right) in enumerate(batches):

        def step(name, number=number):
            before(name)
            if (number, name) in kills and (number, name) not in killed:
                killed.add((number, name))
                raise Killed

        for _ in range(len(STEPS) + 1):
            query.jobs.step = step
            try:
                query.restart() if killed else None
                query.run_tuples(number, left, right)
                break
            except Killed:
                continue


def everything(batches):
    """All tuples of each side."""
    return [[row for batch in batches for row in batch[side]] for side in PAIR]


def usable(batches, window):
    """Per side all tuples with a key (and a time, under a window)."""
    needed = (0,) if window is None else (0, 2)
    return [
        [row for row in side if all(row[i] is not None for i in needed)]
        for side in everything(batches)
    ]


def on_time(batches, delays_us):
    """The tuples at or above the watermark of their batch, and those without a time."""
    newest, watermark, kept = [-math.inf] * len(delays_us), -math.inf, []
    for batch in batches:
        kept.append(tuple([r for r in rows if r[2] is None or r[2] >= watermark] for rows in batch))
        for side, rows in enumerate(batch):
            newest[side] = max([newest[side], *(r[2] for r in rows if r[2] is not None)])
        watermark = max(watermark, min(t - d for t, d in zip(newest, delays_us, strict=True)))
    return kept


def matched(left, right, window):
    """The pairs of equal keys, within the window if there is one."""
    return Counter(_matched(tuple(left), tuple(right), window))


def in_interval(window, lead):
    """Whether right time - left time lies within the bounds that there are."""
    low, high = window.lower_us, window.upper_us
    return (low is None or low <= lead) and (high is None or lead <= high)


@lru_cache(maxsize=4)
def _matched(left, right, window):
    """Kept, since many a law feeds the same batches to layout after layout."""
    rights = of_keys(right)
    return Counter(
        a + b
        for key, rows in of_keys(left).items()
        for a in rows
        for b in rights[key]
        if window is None or in_interval(window, b[2] - a[2])
    )


def of_keys(rows):
    """Key -> its rows, so that a nested loop needs no longer than its results."""
    keys = defaultdict(list)
    for row in rows:
        keys[row[0]].append(row)
    return keys


def check_results(query, batches, window=None):
    """The results are those of the nested loop, and there are some."""
    expected = matched(*usable(batches, window), window)
    # Counters compare their elements one by one, in Python; as dicts they are as different.
    assert dict(query.output()) == dict(expected)
    assert expected


def let_in(batches, asked):
    """The tuples that the filters let in."""
    return [
        tuple([row for row in batch[side] if FILTERS[asked](side, row)] for side in PAIR)
        for batch in batches
    ]


def model(batches, window, asked=(None, None)):
    """The results of the protocol model for the same batches, and its last manifest."""
    disk = Disk([Manifest(-1, (), (Layout(0, 1),))])
    for number, sides in enumerate(batches):
        rows = [
            Row(
                side,
                row[0] if FILTERS[asked](side, row) else None,
                row[1] % U_ONE,
                0 if window is None else row[2],
                row[1],
            )
            for side in PAIR
            for row in sides[side]
            if window is None or row[2] is not None
        ]
        Engine(disk, window).run_batch(number, rows)
    pairs = Counter((a.ident, b.ident) for found in disk.delivered.values() for a, b in found)
    return pairs, disk.manifests[-1]


def values(output):
    """(left value, right value) of each result."""
    return Counter({(row[1], row[4]): n for row, n in output.items()})


def windows_of(window, time):
    """(start, end) of each window that holds a time; there are none beyond 64-bit times."""
    if time is None:
        return []
    size, slide = window.size_us, window.slide_us
    starts = (k * slide for k in range((time - size) // slide, time // slide + 2))
    edges = ((start, start + size) for start in starts if start <= time < start + size)
    return [(start, end) for start, end in edges if INT_MIN <= start and end < INT_MAX]


#: What an outer join puts beside a tuple without a partner.
NOTHING = (None, None, None)


def _entries(window, rows):
    """(row, window) for each window that holds a row; (row, ()) if windows have no edges."""
    if isinstance(window, Sliding):
        return [(row, edges) for row in rows for edges in windows_of(window, row[2])]
    return [(row, ()) for row in rows]


def _near(window, a, b):
    """Whether two rows are as far apart in time as an interval asks."""
    if not isinstance(window, Within):
        return True
    return None not in (a[2], b[2]) and in_interval(window, b[2] - a[2])


def joined(left, right, window, how, matches=lambda a, b: a[0] == b[0]):
    """SQL's join of two lists of rows, by definition."""
    lefts, rights = _entries(window, left), _entries(window, right)
    found = [
        (a, b)
        for a in lefts
        for b in rights
        if a[1] == b[1]
        and None not in (a[0][0], b[0][0])
        and matches(a[0], b[0])
        and _near(window, a[0], b[0])
    ]
    met_left, met_right = {a for a, _ in found}, {b for _, b in found}
    alone_left = [a for a in lefts if a not in met_left]
    alone_right = [b for b in rights if b not in met_right]
    both = [a[0] + b[0] + a[1] for a, b in found]
    left_padded = [a[0] + NOTHING + a[1] for a in alone_left]
    right_padded = [NOTHING + b[0] + b[1] for b in alone_right]
    return Counter(
        {
            "inner": both,
            "left": both + left_padded,
            "right": both + right_padded,
            "full": both + left_padded + right_padded,
            "left_semi": [a[0] + a[1] for a in lefts if a in met_left],
            "left_anti": [a[0] + a[1] for a in alone_left],
        }[how]
    )


#: How many instances drawn placements use.
INSTANCES = 4


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    mode = draw(st.sampled_from(Mode))
    order = draw(st.permutations(range(INSTANCES)))
    if mode is Mode.WHOLE:
        return Placement.whole(order[0], tuple(order[1 : 1 + draw(st.integers(0, 3))]))
    if mode is Mode.GRID:
        rows, columns = draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 4)]))
        cells = rows * columns
        edges = [U_ONE * i // cells for i in range(cells + 1)]
    else:
        cuts = draw(st.sets(st.integers(1, U_ONE - 1), max_size=INSTANCES - 1))
        edges, columns = [0, *sorted(cuts), U_ONE], 1
    fragments = tuple(
        Fragment(order[i % INSTANCES], edges[i], edges[i + 1]) for i in range(len(edges) - 1)
    )
    return Placement(mode, fragments, draw(st.sampled_from(PAIR)), columns)

"""Both exchanges bring to each instance what was routed to it, in the order of the senders."""

from __future__ import annotations

import random
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.exchange.arrivals import Arriving
from joinengine.exchange.exchange import Address, FileExchange
from joinengine.exchange.packets import ShuffleExchange, forwarded
from joinengine.exchange.route import RoutePlan, RouteTask
from joinengine.kernels.hashing import content_hashes
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws.cases import DISORDERED, everything, relaxed, skewed_batches

sent = st.lists(  # per sender its record batches, each of (instance, value)
    st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=12),
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


def put(exchange, number, batches, instances=7):
    """Send the batches as `sender` number; the block."""
    outbox = exchange.outbox(Address(0, Side.RIGHT, number, instances))
    for pairs in batches:
        targets, values = (np.array(column) for column in zip(*pairs, strict=True))
        order, bounds = outbox.group(targets)
        outbox.put(pa.RecordBatch.from_pydict({"v": values[order]}), bounds)
    return outbox.close()


def slices(exchange, blocks, instance):
    """What lies for an instance in blocks, in order."""
    found = []
    for block in blocks:
        for batch, bounds in zip(exchange.batches(block), block.bounds, strict=True):
            piece = batch.slice(bounds[instance], bounds[instance + 1] - bounds[instance])
            found += piece.column("v").to_pylist()
    return found


@relaxed
@given(sent, st.integers(1, 9), st.randoms(use_true_random=False))
def test_both_exchanges_bring_the_same(sent, tasks, rng):
    world = MemoryWorld()
    files = FileExchange(world.storage("exchange"), world)
    blocks = [put(files, n, batches) for n, batches in enumerate(sent)]
    blocks = [block for block in blocks if block is not None]
    packets = []
    for number, batches in enumerate(sent):
        exchange = ShuffleExchange(tasks)
        assert (put(exchange, number, batches) is None) == (not batches)
        packets += exchange.sent()
    rng.shuffle(packets)
    for instance in range(7):
        mine = [one.content for one in packets if one.task == instance % tasks]
        arrived = ShuffleExchange(tasks, mine)
        left, right = arrived.blocks(2)
        assert left == ()
        assert slices(arrived, right, instance) == slices(files, blocks, instance)


@pytest.mark.parametrize("left", [0, 10, 0.5, -1])
def test_a_block_that_is_cut_off_is_refused_by_name(left):
    world = MemoryWorld()
    storage = world.storage("exchange")
    block = put(FileExchange(storage, world), 0, [[(1, 2), (3, 4)]])
    whole = storage.get(block.file)
    storage.put(block.file, whole[: int(left * len(whole)) if left == 0.5 else left])
    with pytest.raises(
        DamagedState, match=rf"block exchange/{block.file} .* start the query again"
    ):
        FileExchange(storage, world).batches(block)


def test_a_packet_that_is_missing_is_noticed():
    exchange = ShuffleExchange(2)
    block = put(exchange, 0, [[(0, 1), (2, 1), (3, 1)], [(4, 1)]])
    coming = Arriving.by_task([block, block], Side.RIGHT, [(0, 2), (1, 3)])
    assert [one.rows for one in coming] == [6, 2]
    packets = [one.content for one in exchange.sent() if one.task == 0]
    ShuffleExchange(2, packets).check((0, 3))
    with pytest.raises(DamagedState, match="Right input: received 2 of 3 rows"):
        ShuffleExchange(2, packets[:1]).check((0, 3))


@relaxed
@given(sent, st.integers(1, 4), st.sets(st.integers(0, 6), min_size=1))
def test_what_a_lost_instance_gets_comes_to_all_tasks(sent, tasks, lost):
    packets = []
    for number, batches in enumerate(sent):
        exchange = ShuffleExchange(tasks)
        put(exchange, number, batches)
        packets += exchange.sent()
    copies = [one for packet in packets for one in forwarded(packet.content, lost, tasks)]
    for task in range(tasks):
        whole = ShuffleExchange(tasks, [one.content for one in copies if one.task == task])
        for instance in range(7):
            own = [one.content for one in packets if one.task == instance % tasks]
            before = ShuffleExchange(tasks, own)
            wanted = slices(before, before.blocks(2)[1], instance)
            here = instance in lost or instance % tasks == task
            assert slices(whole, whole.blocks(2)[1], instance) == (wanted if here else [])


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("layout", ["hash", "shuffle"])
def test_a_second_attempt_sends_the_same_whatever_the_order_of_its_rows(layout, how, tmp_path):
    """The harness compares the attempts; `shuffle` stores by u, watchers follow from numbers."""
    window = within("lt", "rt", lower="-90 us", upper="90 us", delay="1 s")
    jobs = InlineJobs(twice=True, **DISORDERED)
    query = LocalQuery(tmp_path, two_way(window, 4, how=how), layout, jobs=jobs)
    batches = skewed_batches(3)
    for number, sides in enumerate(batches):
        query.run_tuples(number, *sides)
    query.finish(len(batches))
    inner = sum(None not in row for row in query.output().elements())
    lefts, rights = everything(batches)
    pairs = sum(a[0] == b[0] and abs(a[2] - b[2]) <= 90 for a in lefts for b in rights)
    assert inner == pairs > 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [2, 1], None, [], [None], [1, 2]]),
        pa.array([{"a": 1, "b": None}, {"a": None, "b": 1}, None, {"a": 1, "b": 1}]),
        pa.array([[("k", 1)], [("k", 2)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"a": [1]}], [{"a": [2]}], [{"a": None}], None]),
        pa.array(["a", "b", None, "a"]),
    ],
    ids=lambda column: str(column.type),
)
def test_the_order_of_content_is_that_of_no_arrival(column):
    rng = random.Random(1)
    rows = [*range(len(column))] * 20
    orders = []
    for cut in (0, 3):
        rng.shuffle(rows)
        mixed = column.take(pa.array([*rows[:cut], *rows])).slice(cut)
        order = np.argsort(content_hashes([mixed]), kind="stable")
        found = mixed.take(pa.array(order)).to_pylist()
        orders.append(found)
        changes = sum(one != other for one, other in pairwise(found))
        assert changes == len({str(value) for value in column.to_pylist()}) - 1
    assert orders[0] == orders[1]


def test_a_task_that_sorts_what_it_reads_routes_it_in_pieces_that_fit(monkeypatch):
    """All of it together may be more than one column of text can hold."""
    rows, schema = list(range(40)), pa.schema([("v", pa.int64()), ("t", pa.string())])
    plan = RoutePlan(0, 0, {0: ()}, None, memory_bytes=4 * 1200)
    seen = []

    class Writer:
        write_s, report = 0.0, None

        def add(self, batch):
            seen[-1].append(batch)

        def close(self):
            return None

    monkeypatch.setattr(RouteTask, "_writers_of", lambda self, source: [Writer()])
    for mixed, cut in ((rows, 7), (rows[::-1], 19)):
        seen.append([])
        task = RouteTask(plan, 0, None, MemoryWorld(), sorts=True)
        batches = [
            pa.record_batch([pa.array(part), pa.array(["x" * 100] * len(part))], schema=schema)
            for part in (mixed[:cut], mixed[cut:30], mixed[30:])
        ]
        assert not list(task.add(0, batches))
        task.close()
    first, second = ([batch.column(0).to_pylist() for batch in pieces] for pieces in seen)
    assert first == second
    assert sorted(chain.from_iterable(first)) == rows
    assert max(batch.nbytes for pieces in seen for batch in pieces) < 1300

"""What a scrape says, and that the pages and the dashboard name what it says."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from joinengine.balancing.statistics import skew
from joinengine.driver.records import Worked
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Hash, Mnrt
from joinengine.model.windows import within
from joinengine.reporting import prometheus
from joinengine.reporting.prometheus import Source, answer
from joinengine.spark.query.scraping import scraped
from joinengine.state.partitions import Partitions
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.unit.metrics import named, same
from tests.unit.states import chain, manifest_of

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana.json"
HOT = 424_242
NAME = 'my "query"\\\n'
#: Labels beside `query` and `operator`.
OWN = {"id", "step", "quantile", "layout", "of", "source", "partition"}


def text(source):
    """All figures, to whoever names no format."""
    return answer(source, "")[0]


def batches():
    """A hot key, which is split; late tuples, some without a key, and time that goes on."""
    for number in range(4):
        base = 40_000_000 * number
        left = [(HOT, 100 * number + i, base + i) for i in range(60)]
        left += [(i, i, base) for i in range(20)] + [(None, 1, base), (3, 1, -(10**9))]
        yield left, left[::-1]


def start(world):
    return LocalQuery(
        "/nowhere/query",
        two_way(within("lt", "rt", lower="-10 s", upper="10 s", delay="1 s"), instances=3),
        "mnrt",
        choice=Mnrt(imbalance=0.0, min_gain=0.0, intervals=1),
        jobs=InlineJobs(world=world),
    )


@pytest.fixture(scope="module")
def query():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joinengine.balancing.statistics.NOISE_SIGMAS", 0.0)
        found = start(MemoryWorld())
        for number, (left, right) in enumerate(batches()):
            found.run_tuples(number, left, right)
    return found


def source_of(query, **more):
    record = query.records[-1] if query.records else None
    return Source(NAME, "an-id", query.runner.manifest, record, **more)


def values(said, parser=parse):
    """(name, labels without the query's) -> value."""
    found = {}
    for family in parser(said.decode()):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.labels.pop("query") == NAME
            found[sample.name, *sample.labels.values()] = sample.value
    return found


def test_a_scrape_says_what_the_totals_the_record_and_the_state_say(query):
    found = values(text(source_of(query, forecast_bytes=[12.5])))
    totals, record = query.runner.manifest.totals, query.records[-1]
    join, operator = record.joins[0], totals.operators[0]
    assert {name for name, *_ in found} == {one.name for one in FIGURES}
    for name in ("batches", "input_rows", "output_rows", "skipped_files"):
        assert found[f"joinengine_{name}_total",] == getattr(totals, name)
    sums = ("late_rows", "null_rows", "expired_rows", "moved_rows", "moved_bytes", "probe_copies")
    for name in (*sums, "replans"):
        assert found[f"joinengine_{name}_total", "0"] == operator[name] > 0, name
    assert found["joinengine_busy_seconds_total", "0"] == operator["busy_s"] > 0
    assert found["joinengine_operator_output_rows_total", "0"] == totals.output_rows > 0
    for name in ("state_rows", "state_bytes", "routing_entries", "split_keys", "instances"):
        assert found[f"joinengine_{name}", "0"] >= 1
    assert found["joinengine_state_rows", "0"] == join.state.rows
    assert found["joinengine_state_bytes", "0"] == join.state.size_bytes
    assert found["joinengine_forecast_state_bytes", "0"] == 12.5
    assert found["joinengine_watermark_timestamp_seconds", "0"] == join.watermark / 1e6
    newest = max(side.newest for side in join.sides)
    assert found["joinengine_newest_timestamp_seconds", "0"] == newest / 1e6
    lag = (newest - join.watermark) / 1e6
    assert found["joinengine_watermark_lag_seconds", "0"] == lag > 0
    layout = "mnrt:intervals=1,imbalance=0.0,min_gain=0.0"
    assert found["joinengine_layout_info", layout, "0"] == 1
    assert found["joinengine_query_info", "an-id"] == 1
    assert found["joinengine_batch_start_timestamp_seconds",] == record.started
    assert found["joinengine_result_latency_seconds", "0.99"] == record.latency_s(0.99) > 0


def test_keys_without_a_second_copy_are_told(query):
    record = query.records[-1]
    join = replace(record.joins[0], lost=replace(record.joins[0].lost, unbacked_keys=7))
    source = replace(source_of(query), record=replace(record, joins=[join, *record.joins[1:]]))
    assert values(text(source))["joinengine_unbacked_keys", "0"] == 7


def in_partitions(source):
    """The same with a topic, in one partition of which messages wait."""
    read = {0: 5.0, 3: time.time() - 60}
    told = Partitions(5.0, {0: (9e6, 1.0), 3: (-math.inf, 1.0)}, {0: 0, 3: 7}, read)
    return replace(source, manifest=replace(source.manifest, partitions={1: told}))


def test_partitions_say_what_waits_and_how_far_they_are(query):
    found = values(text(in_partitions(source_of(query))))
    ours = {key: value for key, value in found.items() if key[0].startswith("joinengine_partition")}
    assert 60 <= ours.pop(("joinengine_partition_lag_seconds", "3", "1")) < 120
    assert ours == {
        ("joinengine_partition_lag_seconds", "0", "1"): 0,
        ("joinengine_partition_behind_rows", "0", "1"): 0,
        ("joinengine_partition_behind_rows", "3", "1"): 7,
        ("joinengine_partition_newest_timestamp_seconds", "0", "1"): 9,
    }


def test_skews_are_those_of_the_instances(query):
    found = values(text(source_of(query)))
    join = query.records[-1].joins[0]
    loads = {"received": join.work.received, "stored": join.state.held, "busy": join.work.busy_s}
    expected = {of: skew(np.array(load, float)) for of, load in loads.items()}
    assert expected == {of: found["joinengine_load_skew", of, "0"] for of in loads}
    assert len(set(expected.values())) == 3
    quiet = replace(query.records[-1].joins[0], work=Worked([0, 0, 0], busy_s=[0.0] * 3))
    record = replace(query.records[-1], joins=[quiet], left_at=[])
    found = values(text(replace(source_of(query), record=record)))
    # A batch that brought nothing has no skew and no latency, rather than an even one.
    assert {key[1] for key in found if key[0] == "joinengine_load_skew"} == {"stored"}
    assert not any(name == "joinengine_result_latency_seconds" for name, *_ in found)


def test_the_steps_add_up_to_the_batch(query):
    record = replace(query.records[-1], trigger_s=0.0)
    record.trigger_s = record.seconds["elapsed_s"] + 1.5
    found = values(text(replace(source_of(query), record=record)))
    steps = {key[1]: value for key, value in found.items() if key[0] == "joinengine_batch_seconds"}
    assert set(steps) == {"route", "join", "plan", "commit", "sink", "other"}
    assert sum(steps.values()) == pytest.approx(record.trigger_s)
    assert steps["route"] == record.seconds["route_s"]


def test_counters_and_state_survive_a_restart(query):
    before = values(text(source_of(query)))
    query.restart()
    after = values(text(replace(source_of(query), record=None)))
    gone = {"batch_start_timestamp_seconds", "batch_seconds", "result_latency_seconds"}
    gone |= {"load_skew", "unbacked_keys"}
    kept = {key: value for key, value in before.items() if key in after}
    assert kept == after
    lost = {key[0].removeprefix("joinengine_") for key in before.keys() - after.keys()}
    assert lost <= gone


def test_before_the_first_batch_counters_are_zero():
    query = chain()
    found = values(text(Source(NAME, "i", manifest_of(query, Hash(), Hash()), running=False)))
    assert found["joinengine_up",] == 0
    for number in ("0", "1"):
        assert found["joinengine_late_rows_total", number] == 0
        assert found["joinengine_state_rows", number] == 0
    assert not any("watermark" in name for name, *_ in found)


@pytest.mark.parametrize(
    ("accept", "content_type", "parser"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", parse),
        ("text/html, */*", "text/plain; version=0.0.4; charset=utf-8", parse),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", None),
        *(
            (odd, "text/plain; version=0.0.4; charset=utf-8", parse)
            for odd in (
                *("application/openmetrics-text;version=abc", "text/plain;version=a.b;q=\xff;;=;"),
                *("application/openmetrics-text; version=1.x; escaping=zzz", ";,=;version=="),
            )
        ),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(query, accept, content_type, parser):
    said, kind = answer(source_of(query), accept)
    assert kind.startswith(content_type)
    openmetrics = parser is None
    assert said.endswith(b"# EOF\n") == openmetrics
    assert values(said, parser or parse_openmetrics) == values(text(source_of(query)))


def test_a_watermark_ahead_of_all_tuples_has_no_lag(query):
    source = source_of(query)
    (one,) = source.manifest.operators
    newest = max(side.newest for side in one.clock.sides)
    ahead = replace(one, clock=SimpleNamespace(sides=one.clock.sides, watermark=newest + 5e6))
    manifest = replace(source.manifest, operators=(ahead,))
    found = values(text(replace(source, manifest=manifest)))
    assert found["joinengine_watermark_lag_seconds", "0"] == 0.0


def test_no_key_and_no_file_is_told(query):
    said = text(in_partitions(source_of(query))).decode()
    assert str(HOT) not in said
    state = query.state
    assert state.layouts.newest.layout.table.split_keys  # so there was something to tell
    assert not any(str(hash_) in said for hash_ in state.layouts.newest.layout.table.placements)
    assert not any(name in said for name in query.runner.manifest.named_files())
    labels = set(re.findall(r'[{,](\w+)="', said))
    assert labels == {"query", "operator", *OWN}


FIGURES = (*prometheus._QUERY, *prometheus._OPERATOR)


def test_the_page_names_every_figure():
    parts = (*prometheus._QUERY, *prometheus._PARTITION, *prometheus._OPERATOR)
    same(named("Prometheus") + named("Prometheus", 1), [one.name for one in parts])
    text_ = (DOCS / "metrics.md").read_text()
    for one in FIGURES:
        (row,) = re.findall(rf"^\| `{one.name}` .*$", text_, re.M)
        assert not one.label or f"`{one.label}`" in row


def test_units_stand_in_the_names():
    known = (
        "candidates",
        "pairs",
        "replans",
        "rows",
        "bytes",
        "seconds",
        "copies",
        "files",
        "batches",
        "keys",
        "entries",
        "roles",
        "instances",
        "reports",
        "bytes_up",
        "bytes_down",
    )
    bare = {"up", "query_info", "layout_info", "instances", "layout_versions", "load_skew"}
    for one in FIGURES:
        name = one.name.removeprefix("joinengine_")
        assert name in bare or name.removesuffix("_total").endswith(known), name


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def test_the_dashboard_asks_for_what_there_is(query):
    said = values(text(in_partitions(source_of(query, forecast_bytes=[1.0]))))
    there = {name for name, *_ in said}
    asked = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in re.findall(r"joinengine_\w+", target["expr"])
    }
    assert asked - there == set()
    # What an operator looks for first is on it.
    for word in (
        "state_bytes",
        "input_rows_total",
        "watermark_lag",
        "load_skew",
        "replans",
        "late",
        "partition_lag_seconds",
    ):
        assert any(word in name for name in asked), word
    for panel in panels():
        for target in panel["targets"]:
            counted = re.findall(r"(\w+)\((joinengine_\w+_total)", target["expr"])
            assert len(counted) == target["expr"].count("_total")
            assert all(function in ("rate", "increase") for function, _ in counted)
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in {"query", "operator", *OWN}


def test_the_dashboard_is_sound():
    board = json.loads(DASHBOARD.read_text())
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert "joinengine_up" in variables["query"]["definition"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 10
    taken = set()
    for panel in board["panels"]:
        assert panel["title"] and panel["description"] and panel["targets"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        here = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not here & taken
        taken |= here
        assert all("$query" in one["expr"] for one in panel["targets"])


def test_a_running_query_is_scraped(query):
    watch = SimpleNamespace(records=query.records)
    spark = SimpleNamespace(id="an-id", name=NAME, isActive=True)
    figures = scraped(spark, query.runner, watch)
    said, kind = figures("")
    assert kind.startswith("text/plain")
    found = values(said)
    assert found["joinengine_up",] == 1
    assert found["joinengine_batches_total",] == 4
    assert found["joinengine_forecast_state_bytes", "0"] > 0
    assert query.runner.query.operators[0].forecast({}) is None
    spark.isActive = False
    assert values(figures("")[0])["joinengine_up",] == 0
    unnamed = scraped(SimpleNamespace(id="an-id", name=None, isActive=True), query.runner, watch)
    assert b'query="an-id"' in unnamed("")[0]


def test_a_scrape_after_the_end_of_spark_says_that_the_query_is_down(query):
    class Gone:
        id, name = "an-id", NAME

        @property
        def isActive(self):
            raise ConnectionRefusedError

    found = values(scraped(Gone(), query.runner, SimpleNamespace(records=[]))("")[0])
    assert found["joinengine_up",] == 0
    assert found["joinengine_batches_total",] == 4

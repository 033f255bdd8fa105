"""`make bench-kafka`: joins of topics, in rows per second and milliseconds from topic to topic.

Flat out: both topics hold all messages, and a system reads them to their end and drops the results.
Spark's own join gets a part of the stream, since it would take many minutes. Each system runs in a
process of its own, on the same broker, which has a part of the same cores.

Latency: messages are sent at a rate, joined, and read from the topic of the results by a consumer
that sees committed transactions alone; from the sending of the later message of a match until the
consumer has it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.kafka.broker import Broker
from benchmarks.kafka.messages import CLICKS_PER_PURCHASE, NAMES, SIDES, recorded, send
from benchmarks.kafka.systems import BATCH_ROWS, SYSTEMS, topic_of
from benchmarks.kafka.topics import make
from benchmarks.keeping import printed
from joinengine.lab.comparison.tables import figures_table

console = Console(soft_wrap=True)
#: Clicks of the whole stream, the event time of a click, and the part that Spark's join gets.
CLICKS, CLICKS_PER_S, SPARK_PART = 2_000_000, 20_000, 10
_PARTITIONS = (2, 16)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/kafka"))
@click.option("--clicks", default=CLICKS, show_default=True, help="Clicks of the stream.")
@click.option("--rates", default="10000,100000", show_default=True, help="Messages a second.")
@click.option("--seconds", default=30.0, show_default=True, help="How long each rate is kept.")
@click.option("--only", type=click.Choice(["flat", "latency"]))
def main(out: Path, clicks: int, rates: str, seconds: float, only: str | None) -> None:
    """Measure; write the figures as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "kafka.json"
    figures: dict[str, Any] = {"flat": [], "latency": []}
    if only is not None and path.exists():  # what is not measured this time stays
        figures |= json.loads(path.read_text())
        figures[only] = []
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        if only != "latency":
            for partitions in _PARTITIONS:
                figures["flat"] += _flat(broker, clicks, partitions, Path(folder))
        if only != "flat":
            for rate in map(float, rates.split(",")):
                figures["latency"].append(_latency(broker, rate, seconds, Path(folder)))
    path.write_text(json.dumps(figures, indent=1))
    console.print(_flat_table(figures["flat"]))
    check(figures["flat"])
    console.print(_latency_table(figures["latency"]))


def _flat(broker: Broker, clicks: int, partitions: int, folder: Path) -> list[dict[str, Any]]:
    """All systems on topics of so many partitions."""
    lines = list[dict[str, Any]]()
    for part in (1, SPARK_PART):
        # The part of the stream has topics of its own, under names with another number.
        counts = {"clicks": clicks // part, "purchases": clicks // part // CLICKS_PER_PURCHASE}
        make(broker, partitions, *(topic_of(side, partitions) for side in SIDES))
        for side, count in counts.items():
            span_s = clicks / part / CLICKS_PER_S
            send(broker.servers, topic_of(side, partitions), recorded(side, count, span_s))
        if part == 1:
            _write(folder, counts, clicks / CLICKS_PER_S)
        for name in SYSTEMS:
            if (name == "Spark") == (part == SPARK_PART):
                lines.append(_run(name, broker, partitions, folder, sum(counts.values())))
        for deleted in broker.admin.delete_topics(
            [topic_of(side, partitions) for side in SIDES], operation_timeout=30
        ).values():
            deleted.result(30)
        time.sleep(2.0)  # until the names are free
    return lines


def _run(name: str, broker: Broker, partitions: int, folder: Path, rows: int) -> dict[str, Any]:
    asked = name, broker.servers, str(partitions), str(folder)
    figures = printed(name, "benchmarks.kafka.systems", *asked)
    line = {"system": name, "partitions": partitions, "rows": rows, **figures}
    console.print(f"{name}, {partitions} partitions: {rows / figures['seconds']:,.0f} rows/s")
    return line


def _write(folder: Path, counts: dict[str, int], span_s: float) -> None:
    """The rows of both sides as Parquet, of the rows of one batch in each file."""
    for side, count in counts.items():
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir()
        texts = [message.value for message in recorded(side, count, span_s)]
        for number, first in enumerate(range(0, count, BATCH_ROWS[side])):
            rows = _decoded(side, texts[first : first + BATCH_ROWS[side]])
            path = folder / side / f"{number:05d}.parquet"
            pq.write_table(rows, path, row_group_size=BATCH_ROWS[side] // 4)


def _decoded(side: str, texts: list[bytes]) -> pa.Table:
    from pyarrow import json as arrow_json  # noqa: PLC0415

    rows = arrow_json.read_json(pa.BufferReader(b"\n".join(texts)))
    at = rows.column_names.index(NAMES[side][1])
    return rows.set_column(at, NAMES[side][1], rows.column(at).cast(pa.timestamp("us", "UTC")))


def _latency(broker: Broker, rate: float, seconds: float, folder: Path) -> dict[str, Any]:
    """The join of two topics into a third one, at so many messages a second."""
    from benchmarks.kafka.latency import measured  # noqa: PLC0415

    figures = measured(broker, rate, seconds, folder / f"rate-{rate:.0f}")
    console.print(
        f"{rate:,.0f} messages/s: {figures['p50_ms']:.0f} ms, 99 %: {figures['p99_ms']:.0f} ms"
    )
    return figures


def check(lines: list[dict[str, Any]]) -> None:
    """Raise ClickException unless the topics have the results that their rows have in files.

    Rows that Spark's source brings may be late, so that results are missing; their rates count.
    """
    for partitions in _PARTITIONS:
        results = {
            line["system"]: line["results"] for line in lines if line["partitions"] == partitions
        }
        if results.get("joinengine") != results.get("joinengine, Parquet"):
            raise click.ClickException(f"{partitions} partitions: the results differ: {results}")


def _flat_table(lines: list[dict[str, Any]]) -> Table:
    table = figures_table(("", "partitions", "rows", "seconds", "rows/s", "results"))
    for line in lines:
        rate = line["rows"] / line["seconds"]
        cells = f"{line['rows']:,}", f"{line['seconds']:.1f}", f"{rate:,.0f}"
        table.add_row(line["system"], str(line["partitions"]), *cells, f"{line['results']:,}")
    return table


def _latency_table(lines: list[dict[str, Any]]) -> Table:
    table = figures_table(("messages/s", "matches", "p50 ms", "p90 ms", "p99 ms"))
    for line in lines:
        late = (f"{line[name]:,.0f}" for name in ("p50_ms", "p90_ms", "p99_ms"))
        table.add_row(f"{line['rate']:,.0f}", f"{line['matches']:,}", *late)
    return table


if __name__ == "__main__":
    main()

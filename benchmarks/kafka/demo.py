"""`make kafka-demo`: joins two topics into a third topic and a Delta table, and watches the lag.

A broker, two producers and the two queries run on this machine. One user has a part of all clicks
and purchases; every 20 s it is another one. After a minute the producers stop. Then all topics and
the table are read, and compared with what DuckDB makes of the messages: nothing is missing, and
nothing is there twice.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import click
import duckdb
import matplotlib as mpl
import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.kafka.broker import Broker
from benchmarks.kafka.latency import PARTITIONS, Watcher, matches_of
from benchmarks.kafka.messages import COLUMNS, PART, SHIFT_S, SIDES, WINDOW_S
from benchmarks.kafka.sending import sent_live
from benchmarks.kafka.topics import make, messages

mpl.use("Agg")
from matplotlib import pyplot as plt

console = Console(soft_wrap=True)
MATCHES = "matches"
#: The columns of a match, as text that is the same from JSON and from a table.
_ROWS = "user_id::bigint, epoch_us({0}), page::int, buyer_id::bigint, epoch_us({1}), amount::int"
_PRINTED_S = 5.0


def _tell(watcher: Watcher) -> None:
    """Print a line every few seconds, until the watcher has ended."""
    while watcher.is_alive():
        time.sleep(_PRINTED_S)
        newest_s = watcher.matches[-1][0] if watcher.matches else 0.0
        if newest_s > time.time() - _PRINTED_S:
            p50, p99 = watcher.late_ms(50, 99, after_s=newest_s - _PRINTED_S)
            console.print(
                f"{len(watcher.matches):>9,} matches; from a message to its matches {p50:.0f} ms "
                f"(99 %: {p99:.0f}); the newest: {watcher.newest}"
            )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/kafka-demo"))
@click.option("--rate", default=2000.0, show_default=True, help="Clicks a second.")
@click.option("--seconds", default=60.0, show_default=True, help="How long messages are sent.")
def main(out: Path, rate: float, seconds: float) -> None:
    """Run all; write the picture and the figures."""
    shutil.rmtree(out, ignore_errors=True)
    with Broker(out / "broker") as broker:
        make(broker, PARTITIONS, *SIDES, MATCHES)
        console.print(f"broker at {broker.servers}; topics {', '.join((*SIDES, MATCHES))}")
        queries = _started(broker.servers, out)
        watcher = Watcher(broker.servers, MATCHES)
        watcher.start()
        threading.Thread(target=_tell, args=(watcher,), daemon=True).start()
        begin_s = time.time()
        sent = sent_live(broker.servers, {side: side for side in SIDES}, rate, seconds)
        for query in queries:
            query.processAllAvailable()
            query.stop()
        watcher.end()
        console.print(f"sent {sent[0]:,} clicks and {sent[1]:,} purchases; comparing with DuckDB")
        count = _compared(broker.servers, out / "table")
    console.print(f"{count:,} matches in topic and table, each once, as DuckDB finds them")
    p50, p99 = watcher.late_ms(50, 99)
    figures = {"sent": sent, "matches": count, "p50_ms": p50, "p99_ms": p99}
    (out / "figures.json").write_text(json.dumps(figures, indent=1))
    _draw(watcher, begin_s, queries[0], out / "kafka-demo.png")
    console.print(f"picture: {out / 'kafka-demo.png'}")


def _started(servers: str, out: Path) -> list[Any]:
    """The join twice: into the topic, and into the table."""
    matches = matches_of(servers, {side: side for side in SIDES})
    writers = (
        matches.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", MATCHES),
        matches.writeStream.format("delta")
        .option("path", str(out / "table"))
        .option("commitEvery", "5 seconds"),
    )
    return [
        writer.option("checkpointLocation", str(out / f"checkpoint-{number}")).start()
        for number, writer in enumerate(writers)
    ]


def _compared(servers: str, table: Path) -> int:
    """How many matches there are. Raises ClickException unless all three agree, as multisets."""
    from deltalake import DeltaTable  # noqa: PLC0415

    db = duckdb.connect()
    for name in (*SIDES, MATCHES):
        texts = pa.array([one.value().decode() for one in messages(servers, name)], pa.string())
        db.register(f"{name}_texts", pa.table({"text": texts}))
    db.register("delta_rows", DeltaTable(str(table)).to_pyarrow_table())
    times = "(text->>'clicked_at')::timestamptz", "(text->>'bought_at')::timestamptz"
    in_json = _ROWS.format(*times)
    for column in ("user_id", "page", "buyer_id", "amount"):
        in_json = in_json.replace(f"{column}::", f"(text->>'{column}')::")
    db.sql(f"create table topic as select {in_json} from {MATCHES}_texts")
    db.sql(f"create table lake as select {_ROWS.format('clicked_at', 'bought_at')} from delta_rows")
    for side, columns in COLUMNS.items():
        fields = (column.split()[:2] for column in columns.split(", "))
        read = ", ".join(f"(text->>'{name}')::{_type(kind)} as {name}" for name, kind in fields)
        db.sql(f"create table {side} as select {read} from {side}_texts")
    db.sql(
        f"create table truth as select {_ROWS.format('clicked_at', 'bought_at')} from clicks join "
        f"purchases on user_id = buyer_id and bought_at >= clicked_at and "
        f"bought_at <= clicked_at + interval {WINDOW_S} seconds"
    )
    count = int(db.sql("select count(*) from truth").fetchall()[0][0])
    for found in ("topic", "lake"):
        for one, other in ((found, "truth"), ("truth", found)):
            left = db.sql(f"select count(*) from (from {one} except all from {other})").fetchall()
            if left[0][0]:
                raise click.ClickException(f"{left[0][0]:,} matches are in {one}, not in {other}")
    if not count:
        raise click.ClickException("nothing matched")
    return count


def _type(kind: str) -> str:
    return "timestamptz" if kind == "timestamp" else kind


def _draw(watcher: Watcher, begin_s: float, query: Any, path: Path) -> None:
    """Matches a second, how late they came, and the busy seconds of each instance."""
    figure, (rates, late, busy) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    came, late_s = np.array(watcher.matches).T
    came = came - begin_s
    rates.hist(came, bins=np.arange(0.0, came.max() + 1.0, 1.0))
    rates.set_ylabel("matches a second")
    late.hist(np.minimum(late_s * 1e3, 1000), bins=50)
    late.set_xlabel("ms from a message to its matches (1,000: or more)")
    seconds = np.sum([batch.joins[-1].work.busy_s for batch in query.batches()], axis=0)
    busy.bar(np.arange(len(seconds)), seconds)
    busy.set_xticks(np.arange(len(seconds)))
    busy.set_xlabel("instance")
    busy.set_ylabel("seconds that it worked")
    for shift in np.arange(0.0, came.max(), SHIFT_S):
        rates.axvline(shift, color="#bbbbbb", linewidth=1)
    rates.set_xlabel("seconds; lines: another user is hot")
    figure.suptitle(f"one user at a time has {PART:.0%} of clicks and purchases")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()

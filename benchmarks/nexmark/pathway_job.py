"""A query of Nexmark in Pathway: `pathway_job.py JOB` in an environment that has Pathway.

JOB is JSON (`benchmarks.nexmark.jobs.Job`). The files are read in Pathway's static mode, as one
batch, since its streaming mode has no end. Nothing of joinengine is imported here.
"""

import json
import sys
from pathlib import Path

import pathway as pw

TYPES = {"int": int, "text": str}
WINDOW_MS = 10_000


def q3(auction, person):
    """Auctions of a category with their sellers of three states."""
    chosen = auction.filter(pw.this.category == 10)
    is_near = (pw.this.state == "OR") | (pw.this.state == "ID") | (pw.this.state == "CA")
    near = person.filter(is_near)
    return chosen.join(near, chosen.seller == near.number).select(
        near.name, near.city, near.state, chosen.number
    )


def q8(person, auction):
    """Persons with an auction in the same ten seconds, by the numbers of the windows."""
    came = person.select(pw.this.number, pw.this.name, k=pw.this.dateTime // WINDOW_MS)
    sold = auction.select(pw.this.seller, k=pw.this.dateTime // WINDOW_MS)
    sellers = sold.groupby(pw.this.seller, pw.this.k).reduce(pw.this.seller, pw.this.k)
    return came.join(sellers, came.number == sellers.seller, came.k == sellers.k).select(
        came.number, came.name, starttime=came.k * WINDOW_MS
    )


def q20(bid, auction):
    """Bids with their auctions of a category."""
    chosen = auction.filter(pw.this.category == 10)
    of_bid = [bid[name] for name in ("auction", "bidder", "price", "channel", "url")]
    names = "itemName description initialBid reserve expires seller category".split()
    return bid.join(chosen, bid.auction == chosen.number).select(
        *of_bid,
        *(chosen[name] for name in names),
        bidTime=bid.dateTime,
        bidExtra=bid.extra,
        auctionTime=chosen.dateTime,
        auctionExtra=chosen.extra,
    )


QUERIES = {"nexmark-q3": q3, "nexmark-q8": q8, "nexmark-q20": q20}


def main():
    """Run it; on a line of its own, say when it begins and when it has ended, and wait."""
    job = json.loads(sys.argv[1])
    Path(job["out"]).mkdir(parents=True)
    tables = dict()
    for table, columns in job["tables"].items():
        schema = pw.schema_from_types(**{name: TYPES[kind] for name, kind in columns.items()})
        file = Path(job["folder"], f"{table}.csv")
        tables[table] = pw.io.csv.read(str(file), schema=schema, mode="static")
    results = QUERIES[job["query"]](**tables).select(*(pw.this[name] for name in job["results"]))
    pw.io.csv.write(results, str(Path(job["out"], "results.csv")))
    print("BEGIN", flush=True)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print("END", flush=True)
    sys.stdin.readline()


main()

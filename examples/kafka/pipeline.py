"""Clicks and purchases of a user within an hour: two topics in, one topic out, exactly once.

    python examples/kafka/pipeline.py localhost:9092 /data/checkpoints/matches

It runs until Ctrl-C; the next start goes on where this one has ended. With --once it ends when it
has read what is there. Topics: clicks, purchases and matches. Needs joinengine[kafka].
"""

import argparse

from joinengine import StreamJoin, equi, kafka_stream, session, within

CLICKS = "user_id bigint, clicked_at timestamp, page int"
PURCHASES = "buyer_id bigint, bought_at timestamp, amount int"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", help="HOST:PORT of the brokers")
    parser.add_argument("checkpoint", help="folder for the state of the query")
    parser.add_argument("--once", action="store_true", help="end when all is read")
    told = parser.parse_args()

    spark = session()
    clicks = kafka_stream(spark, told.servers, "clicks", schema=CLICKS)
    purchases = kafka_stream(spark, told.servers, "purchases", schema=PURCHASES)
    matches = StreamJoin(
        clicks,
        purchases,
        on=equi("user_id", "buyer_id"),
        within=within("clicked_at", "bought_at", lower="0 s", upper="1 hour", delay="5 s"),
    )
    writer = (
        matches.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", told.servers)
        .option("topic", "matches")
        .option("key", "user_id")
        .option("checkpointLocation", told.checkpoint)
        .queryName("matches")
    )
    query = (writer.trigger(availableNow=True) if told.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

"""Join two Parquet folders as streams: python examples/join_two_folders.py CLICKS PURCHASES OUT.

Every click with the purchases of the next hour. Start it again to go on where it stopped.
"""

import sys

from joinengine import StreamJoin, equi, parquet_stream, session, within

if len(sys.argv) != 4:
    sys.exit(__doc__)
_, clicks_folder, purchases_folder, out = sys.argv
spark = session()
joined = StreamJoin(
    parquet_stream(spark, clicks_folder),  # user_id, clicked_at, ...
    parquet_stream(spark, purchases_folder),  # buyer_id, bought_at, ...
    on=equi("user_id", "buyer_id"),
    within=within("clicked_at", "bought_at", lower="0 s", upper="1 hour", delay="5 minutes"),
    layout="mnrt",
)
print(joined.explain())
writer = joined.writeStream.format("parquet").option("checkpointLocation", f"{out}-checkpoint")
query = writer.trigger(availableNow=True).start(out)
query.awaitTermination()
print(query.metrics().select(["batch", "input_rows", "output_rows", "late_rows"]).to_pylist())
spark.stop()

"""Streams of the folders, queries over them, and the same in SQL."""

from __future__ import annotations

from joinengine import parquet_stream


def streams(spark, folders, rows=(40, 120)):
    return (
        parquet_stream(spark, folders.orders, rows_per_interval=rows[0]),
        parquet_stream(spark, folders.items, rows_per_interval=rows[1]),
    )


def run(joined, tmp_path, name="out"):
    query = (
        joined.writeStream.format("parquet")
        .option("path", tmp_path / name)
        .option("checkpointLocation", tmp_path / f"{name}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def pairs(folders, condition):
    orders, items = f"'{folders.orders}/*.parquet'", f"'{folders.items}/*.parquet'"
    return f"select * from {orders} join {items} on {condition}"


def file_stream(spark, folder, limit=1):
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    return reader.option("maxFilesPerTrigger", limit).parquet(str(folder))


def tables(folders):
    return f"'{folders.orders}/*.parquet'", f"'{folders.items}/*.parquet'"


def windowed_sql(folders, how, size_us, slide_us):
    """Each row once for each window that holds it; rows of one window meet."""
    sides = [
        f"(select *, unnest(generate_series((epoch_us({time}) - {size_us}) // {slide_us} + 1, "
        f"epoch_us({time}) // {slide_us})) as k from {table})"
        for time, table in zip(("o_ts", "i_ts"), tables(folders), strict=True)
    ]
    columns = "l.* exclude k" + ("" if "semi" in how or "anti" in how else ", r.* exclude k")
    k = "l.k" if "semi" in how or "anti" in how else "coalesce(l.k, r.k)"
    kind = how.removeprefix("left_") if how.startswith("left_") else how
    return (
        f"select {columns}, make_timestamptz({k} * {slide_us}) as window_start, "
        f"make_timestamptz({k} * {slide_us} + {size_us}) as window_end "
        f"from {sides[0]} l {kind} join {sides[1]} r on id = order_id and l.k = r.k"
    )

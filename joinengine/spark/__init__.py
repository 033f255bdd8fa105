"""The only effects: Spark's sources, jobs and sinks around the pure core.

`exchange`, `route`, `join` and `results` are what tasks run; they import no pyspark and are tested
without it. `source`, `batch`, `sink`, `session` and `query` talk to Spark.
"""

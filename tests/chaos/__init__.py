"""Real processes, real disks and a real object store, of which one after the other is killed.

What `tests/simulator` does in steps of one process and thousands of times, this does to Spark
itself for a minute a run: its results must be those of DuckDB, whatever has ended in between.
"""

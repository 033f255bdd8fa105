"""Computations on arrays, without side effects: no Spark, no files, no Python loop over tuples."""

"""Connects the engine to Spark: sessions, sources, jobs, sinks and the running query.

The rooms before this one run without Spark.
"""

"""Spark around the engine: sessions, sources, jobs, sinks and the running query.

Everything else in the package runs without it.
"""

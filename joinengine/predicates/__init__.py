"""Predicates and aggregates: SQL of the user, compiled once and evaluated by DuckDB."""

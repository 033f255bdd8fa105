"""Planners: counts go in, placements come out. No clock, no Spark, no tuples."""

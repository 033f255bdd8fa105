"""Planners: what was counted goes in, a better layout comes out. No clock, no Spark, no data."""

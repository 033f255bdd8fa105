"""Planners and candidate layouts on synthetic loads, without Spark."""

"""Planners and choice layouts on synthetic loads, without Spark."""

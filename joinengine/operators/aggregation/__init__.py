"""Windowed aggregates, in two or three stages."""

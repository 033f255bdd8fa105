"""Seconds of a batch as executors grow."""

"""Brings results from staged files to what users see: sinks, showings, merging. No Spark."""

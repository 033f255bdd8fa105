"""Tuples on their way: from the sources to the instances, and from there to the sink. No Spark."""

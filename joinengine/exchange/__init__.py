"""Tuples on their way from sources to instances: admitted, routed, handed over. No Spark."""

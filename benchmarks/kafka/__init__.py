"""Joins of topics: a broker on this machine, the demo, and rates."""

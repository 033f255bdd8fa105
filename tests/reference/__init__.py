"""Slow and obviously right twins of the engine's parts; tests compare the engine with them."""

"""Slow twins of the engine's parts, plain enough to trust; tests compare the engine with them."""

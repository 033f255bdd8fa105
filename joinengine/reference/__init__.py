"""Slow and obviously right twins of what the engine does fast; tests compare against them."""

"""Nouns: frozen facts about joins, windows, keys and reports. No I/O and no Spark."""

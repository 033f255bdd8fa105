"""The nouns: frozen facts about keys, windows, conditions and queries. No I/O, no Spark."""

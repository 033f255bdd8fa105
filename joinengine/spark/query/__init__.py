"""A running query: its start, its thread, its handle, its logs and its page."""

"""A running query: how it is started, its thread, its handle, and what is told of it."""

"""The engine without Spark: its own driver and tasks in this process, one task after another."""

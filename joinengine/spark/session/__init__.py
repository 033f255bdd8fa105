"""Sessions of Spark: their settings, their Python workers, and checks of their executors."""

"""Sessions of Spark: settings that help, workers that are warm, and what executors have."""

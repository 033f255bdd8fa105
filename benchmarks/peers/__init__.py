"""joinengine beside Spark's own stream join and DuckDB's batch join, on the same files."""

"""The tasks of a batch on Spark: jobs for each step, or tasks that stay in a session's slots."""

"""Runs the tasks of a batch on Spark: as a job for each step, or as resident tasks."""

"""The cost of bringing tuples from task to task."""

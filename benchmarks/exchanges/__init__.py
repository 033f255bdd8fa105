"""What it costs to bring tuples from task to task."""

"""What the driver decides and does in a batch: the same whoever runs the tasks. No Spark."""

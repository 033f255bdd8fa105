"""What the driver decides and does in a batch, whatever runs the tasks. No Spark."""

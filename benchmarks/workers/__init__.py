"""What the driver's part of a batch costs as instances, tasks and keys grow."""

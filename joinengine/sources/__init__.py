"""Where tuples come from: files in a recorded order, and how they are read. No Spark."""

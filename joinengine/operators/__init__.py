"""What tasks do with the tuples that arrive: one folder for each operator. No Spark."""

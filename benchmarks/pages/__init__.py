"""What looking at a query costs it."""

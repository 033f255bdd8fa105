"""What a query does when instances or executors have lost state."""

"""Whether anything grows while a query runs for long."""

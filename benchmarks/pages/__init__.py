"""The cost of Spark's web page for a query."""

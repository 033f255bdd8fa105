"""The inputs of a query: own streams, streaming DataFrames, tables, and their types."""

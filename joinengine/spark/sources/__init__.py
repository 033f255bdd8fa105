"""The inputs of a query: joinengine's own streams, streaming DataFrames, tables, their types."""

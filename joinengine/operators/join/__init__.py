"""The join of two streams, or of a stream and a table."""

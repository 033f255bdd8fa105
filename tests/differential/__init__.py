"""Random joins against other engines."""

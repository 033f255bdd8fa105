"""Tuples that resemble none of those before them under their key."""

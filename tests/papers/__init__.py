"""Statements of the papers, as the benchmark prints them."""

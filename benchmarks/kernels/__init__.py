"""Rows per second of the array kernels."""

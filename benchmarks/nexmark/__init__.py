"""Nexmark's joins beside Flink and Pathway (`make bench-nexmark`)."""

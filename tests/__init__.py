"""Tests, by kind: unit, laws, golden, stream, faults."""

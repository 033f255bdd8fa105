"""Tests of kind: faults."""

"""Tests of kind: stream."""

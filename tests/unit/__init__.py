"""Tests of kind: unit."""

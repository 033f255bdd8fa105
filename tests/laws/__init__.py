"""Tests of kind: laws."""

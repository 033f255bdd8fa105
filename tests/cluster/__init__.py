"""Tests of kind: cluster."""

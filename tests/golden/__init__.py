"""Tests of kind: golden."""

"""Comparison of runs: tables, pictures, verdicts, and reports as files."""

"""Runs beside each other: tables, pictures, verdicts, and reports as files."""

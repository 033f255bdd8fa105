"""Reproduces the papers' figures and tables: what each states, beside what joinengine finds."""

"""The papers' statements on decisions, beside what joinengine finds."""

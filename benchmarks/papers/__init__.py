"""The papers' figures and tables, made anew: what each states, beside what joinengine finds."""

"""The time of planners as keys and instances grow."""

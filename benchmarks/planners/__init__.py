"""How long planners take as keys and instances grow."""

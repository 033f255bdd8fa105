"""How often tasks find their run files where they run."""

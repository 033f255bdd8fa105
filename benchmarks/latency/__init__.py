"""From the arrival of a tuple to its visible result."""

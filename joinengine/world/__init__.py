"""What the engine asks of its surroundings: time, names that nobody else has, and files."""

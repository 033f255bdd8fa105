"""The surroundings of the engine: time, unique names, and files."""

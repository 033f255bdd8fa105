"""What `make demo` runs: a hot key on both sides of a stream join, by the clock."""

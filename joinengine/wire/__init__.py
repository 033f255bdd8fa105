"""What driver and tasks tell each other: instructions and reports, and how they are packed."""

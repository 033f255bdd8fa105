"""What the papers state of decisions, beside what comes out here."""

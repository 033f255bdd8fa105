"""From words to deliveries: which instances store a tuple, and which does it probe."""

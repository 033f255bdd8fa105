"""From words to deliveries: which instances store a tuple, and which ones it probes."""

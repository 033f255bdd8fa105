"""The tree beside the version that it comes from (`make bench-gate`)."""

"""Every layout on every query over several skews."""

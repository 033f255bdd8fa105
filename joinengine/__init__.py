"""A stream join for Spark that splits hot keys and rebalances while it runs."""

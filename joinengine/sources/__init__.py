"""The sources of tuples, files and topics: their feeds, and how tasks read them. No Spark."""

"""TPC-H as skewed streams: tables, redrawn foreign keys, one arrival sequence."""

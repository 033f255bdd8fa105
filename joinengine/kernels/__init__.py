"""Arrays in, new arrays out: no Spark, no files, no Python loop over tuples."""

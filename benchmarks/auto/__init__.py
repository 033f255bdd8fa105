"""`auto` beside single layouts, cell by cell (`make bench-auto`)."""

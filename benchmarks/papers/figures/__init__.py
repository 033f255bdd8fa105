"""One module for each figure or table of a paper, with a constant FIGURE."""

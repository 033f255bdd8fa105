"""One module for each figure, named p + paper + _ + figure, with one constant `FIGURE`."""

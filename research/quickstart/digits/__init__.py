"""A Flower app as its tutorials write it: writers of digits train a small network."""

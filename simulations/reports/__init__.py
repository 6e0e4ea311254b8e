"""The page of a run: numbers explained, plots and pictures."""

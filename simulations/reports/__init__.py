"""The page of a run: explained numbers, plots and pictures."""

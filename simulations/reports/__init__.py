"""The page of a run: explained numbers, plots and pictures; and the progress of long work."""

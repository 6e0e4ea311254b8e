"""The configuration of a run: one file, checked."""

"""Records of a run: metrics, run directory, checkpoints, and the list of fields."""

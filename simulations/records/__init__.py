"""Records of a run: metrics, run directory, checkpoints, and the lists of what may be shown to whom."""

"""Records of a run: metrics, run directory, checkpoints, and the lists of fields and log lines."""

"""The engines of a run: nodes in this process, or in Ray actors."""

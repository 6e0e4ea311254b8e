"""What `simulations.records.quality` tells: constants that explanations need too, without what measuring loads."""

BINS = 10
"""Groups of held-out samples, by what is predicted, of which calibration compares means."""
PERCENTILES = (10, 50, 90)
"""Over held-out users, of each user's average."""
MOST_CLASSES = 64
"""Of which each is told from each other one: a table of more is no help to anybody, and large."""
ERRORS = ("squared_error", "absolute_error")
SPREAD = ("test_loss", "accuracy", *ERRORS)
"""Metrics whose spread over users is told; the loss only where there is no error in its place."""
EXPLAINED = {"squared_error": "r2", "deviance": "deviance_explained", "log_loss": "deviance_explained"}
"""Metric -> what the part of it is called that a model takes away from what the best constant has of it."""

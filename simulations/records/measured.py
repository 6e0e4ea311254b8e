"""Constants of `simulations.records.quality`, for explanations that need not load it."""

BINS = 10  # groups of held-out samples, by prediction, whose means calibration compares
PERCENTILES = (10, 50, 90)  # percentiles over held-out users of each user's average
MOST_CLASSES = 64  # a larger confusion table would help nobody
ERRORS = ("squared_error", "absolute_error")
SPREAD = ("test_loss", "accuracy", *ERRORS)  # metrics whose spread over users is shown; the loss only without an error
EXPLAINED = {"squared_error": "r2", "deviance": "deviance_explained", "log_loss": "deviance_explained"}
"""Metric -> name of the share of the best constant's value that a model removes."""

"""Private learning in many dimensions with heavy tails, as estimators on plain arrays."""

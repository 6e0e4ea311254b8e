"""A Flower app: logistic regression with user-level differential privacy."""

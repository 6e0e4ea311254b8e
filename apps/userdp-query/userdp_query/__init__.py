"""A Flower app: statistics of tables at silos with user-level differential privacy."""

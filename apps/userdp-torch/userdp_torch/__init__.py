"""A Flower app: a torch network with user-level differential privacy; its clients are ordinary ones."""

"""A Flower app: silos with tables of people, user-level differential privacy, and a server that sees masked sums."""

"""The computations of a node on its users' data: only one row a user, or their sum, leaves it."""

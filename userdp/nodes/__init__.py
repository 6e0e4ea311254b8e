"""What a node does with its users' data: the computations that leave it, one row a user or their sum."""

"""Simulated users: the laws that their samples follow, with the optimum known."""

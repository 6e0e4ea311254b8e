"""Simulated users: the laws of their samples, with known optimum."""

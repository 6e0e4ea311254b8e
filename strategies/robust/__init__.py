"""Strategies that follow a robust mean of users' gradients, tested for agreement, every round."""

"""Sparse gradients on plain arrays, for tests and documents."""

"""Rows of numbers, dense and sparse, the names of array types, and compiled loops."""

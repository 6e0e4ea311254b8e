"""Rows of numbers, dense and sparse, and the names that their types have everywhere."""

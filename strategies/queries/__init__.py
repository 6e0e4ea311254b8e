"""Queries of tables: one round of noisy sums, and one of choices."""

"""Comparisons: many runs from one file, and their pages."""

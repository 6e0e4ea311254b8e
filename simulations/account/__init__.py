"""Accounts of data sets: everything that is released about one is entered first, and refused beyond its total."""

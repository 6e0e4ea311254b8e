"""Formulas and procedures of single papers.

What strategies use stands in each paper's folder. `reference` in it holds the rest, the papers' algorithms on plain
arrays, which tests and documents compare with and no strategy imports.
"""

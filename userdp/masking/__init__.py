"""Sums that show the server the noisy total alone: integers, pairwise masks, shares of the noise."""

"""Sums of which whoever adds them up sees the noisy total alone: integers, pairwise masks, shares of the noise."""

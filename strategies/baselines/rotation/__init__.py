"""Means of rotated gradients, each coordinate within a privately chosen interval (Levy et al. 2021)."""

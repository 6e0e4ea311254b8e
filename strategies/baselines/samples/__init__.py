"""Sums over single samples: settings, promises and numbers of strategies that work on them, and DP-SGD."""

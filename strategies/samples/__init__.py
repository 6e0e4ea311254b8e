"""Strategies that work on single samples; what they promise a user follows from how many samples it holds."""

"""Averaged clipping on plain arrays, for tests and documents."""

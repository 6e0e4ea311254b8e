"""Averaged clipping: Jin, Zhou, Han, Cheng, Zeng, corrected."""

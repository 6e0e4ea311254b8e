"""The sweeps of one paper."""

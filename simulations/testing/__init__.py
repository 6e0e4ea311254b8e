"""The contract of every strategy, for its author's tests."""

"""No clip, no step and no number of rounds to choose: a strategy that releases what it needs to know of the data."""

"""Runs of a configuration: building, training, silos, trackers."""

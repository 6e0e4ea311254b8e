"""From a configuration to a trained model: building, running, silos, trackers."""

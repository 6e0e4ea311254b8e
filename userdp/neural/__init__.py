"""Torch modules as losses: what samples look like to them, many users at once, local training. Imports torch."""

"""Strategies that clip what users send and add noise to the sum."""

"""Torch modules as losses: per-user gradients, groups of users that fit the memory, and faster layers."""

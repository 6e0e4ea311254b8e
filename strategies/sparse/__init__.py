"""Strategies for sparse gradients and sparse models."""

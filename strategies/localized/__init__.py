"""Strategies that release once a phase, from steps on fresh users."""

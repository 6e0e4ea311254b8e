"""Strategies that release once per phase, from steps on fresh users."""

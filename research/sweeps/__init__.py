"""The tools that sweeps share: a table that one function makes, and slopes."""

"""The messages between a strategy and its nodes, and the checks of strangers' replies."""

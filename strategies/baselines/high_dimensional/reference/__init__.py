"""High-dimensional models on plain arrays, for tests and documents."""

"""Heavy-tailed samples on plain arrays, for tests and documents."""

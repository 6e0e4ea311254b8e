"""Users from tables: cells read one by one, columns by declared facts alone."""

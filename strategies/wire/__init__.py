"""What travels between a strategy and its nodes, and how strangers' replies are read."""

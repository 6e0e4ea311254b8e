"""High-dimensional models with heavy tails: Hu, Ni, Xiao, Wang 2022, corrected."""

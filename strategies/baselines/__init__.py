"""Baselines from papers, one folder per paper. The rest of the house knows them by their entry points alone."""

"""Baselines from papers, one folder a paper. The rest of the house knows them by their entry points alone."""

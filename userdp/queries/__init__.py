"""Statistics of a table at user level: each user's bounded answers, and what follows from their noisy sums."""

"""`userdp audit`: what is claimed against what many runs, or one with many canaries, tell of a user."""

"""Mathematics and data of user-level privacy: problems, federations, estimators, mechanisms, accounting."""

"""Mathematics and data of user-level differential privacy: problems, federations, estimators, mechanisms, accounting."""

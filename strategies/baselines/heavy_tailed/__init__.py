"""Heavy-tailed samples: Zhao, Wu, Liu, Wang, Fan, Li, corrected."""

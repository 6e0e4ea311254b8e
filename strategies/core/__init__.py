"""What every strategy is: the round loop, its scheme, its plan, its options and its result."""

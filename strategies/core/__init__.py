"""The parts of every strategy: the round loop, its scheme, its plan, its options and its result."""

"""Facts that a run's [data] section declares, found privately in a table."""

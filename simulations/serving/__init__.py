"""A federation that is kept: a queue of runs within budgets, who takes part, and a page that says so."""

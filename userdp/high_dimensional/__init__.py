"""Private optimisation where coordinates outnumber samples: over l1 balls and polytopes, and of sparse models.

Errors here depend on the dimension through its logarithm alone. Everything works on arrays; strategies bring it to
federations.
"""

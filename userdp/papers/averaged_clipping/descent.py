"""Gradient descent with clipping after averaging, its restarts, and the per-sample and full-gradient baselines.

Everything works on oracles, so that a population, a table or a test function can stand behind them. Batches are drawn
by `poisson_rows` (private runs) or `fresh_rows` (each row once).
"""

import logging

log = logging.getLogger("userdp")


def clamped_batch(batch: int, samples: int) -> int:
    """``batch``, at most ``samples``; formulas may ask for more than there are."""
    if batch > samples:
        log.warning("a batch of %d samples was asked for where there are %d: every sample is in it", batch, samples)
    return min(batch, samples)

"""Records on which no private mean of sparse vectors can be good, from the proof of a lower bound.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Lemma 4.3); users that are drawn so, and packings, are in
`strategies.baselines.sparse_gradients.populations`. One vector that all records repeat is an EASY instance for a
projection (its error falls like 1/n); blocks of different vectors show the true rate.
"""

import math

import numpy as np
from scipy.sparse import csr_array

from userdp.errors import BadInput


def block_data(
    records: int, dimension: int, sparsity: int, blocks: int, norm: float, rng: np.random.Generator
) -> csr_array:
    """Return (n, d) records in K blocks: all of a block equal one vector, and no two blocks share a coordinate.

    A block has ``n // K`` records; what is left over is zero. Their s entries have size ``norm / sqrt(s)`` and random
    signs. Raises `BadInput` for a number below one, or blocks that do not fit, ``d < K s``.
    """
    if min(records, dimension, sparsity, blocks) < 1 or not 0 < norm < math.inf:
        raise BadInput(
            f"records = {records}, dimension = {dimension}, sparsity = {sparsity}, blocks = {blocks}, norm = {norm}: "
            "each must be positive"
        )
    if blocks > records or blocks * sparsity > dimension:
        raise BadInput(
            f"blocks = {blocks}: {records} records and {dimension} coordinates hold at most "
            f"{min(records, dimension // sparsity)} blocks of {sparsity} coordinates"
        )
    supports = rng.permutation(dimension)[: blocks * sparsity].reshape(blocks, sparsity)
    signs = rng.choice([-1.0, 1.0], (blocks, sparsity))
    of_row = np.repeat(np.arange(blocks), records // blocks)
    filled = len(of_row) * sparsity
    offsets = np.minimum(np.arange(records + 1) * sparsity, filled)
    values = norm / math.sqrt(sparsity) * signs[of_row].ravel()
    return csr_array((values, supports[of_row].ravel(), offsets), shape=(records, dimension))


def hardest_blocks(records: int, dimension: int, sparsity: int, epsilon: float, delta: float) -> int:
    """K, up to a constant, for which `block_data` is hardest: so many that noise just hides a block.

    ``epsilon n / (s ln d)`` for pure privacy (delta = 0), ``epsilon n / sqrt(s ln(d) ln(1 / delta))`` otherwise; at
    least 1, and no more than fit.

    Raises `BadInput`: fewer than 2 coordinates, an epsilon that is not positive, or a delta outside [0, 1).
    """
    if dimension < 2 or not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise BadInput(f"dimension = {dimension}, epsilon = {epsilon}, delta = {delta}: out of range")
    spread = sparsity * math.log(dimension)
    if delta > 0:
        spread = math.sqrt(spread * math.log(1 / delta))
    most = min(records, dimension // sparsity)
    return max(1, min(most, round(epsilon * records / spread)))

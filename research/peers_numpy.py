"""Plain numpy in research/peers.py: all users in one array of float32, a few lines, nothing else."""

import numpy as np
from numpy.typing import NDArray
from peers_work import CLIP, NOISE, RIDGE, asked
from scipy.special import expit
from worker import serve


def main() -> None:
    work, total = asked()
    users, samples, columns = work.features.shape
    flat, targets = work.features.reshape(-1, columns), work.targets.reshape(-1)
    rng, x = np.random.default_rng(1), work.model.astype(np.float32)

    def run_round() -> NDArray[np.float64]:
        slopes = (expit(flat @ x) - targets).reshape(users, 1, samples)
        gradients = np.matmul(slopes, work.features)[:, 0] / samples + np.float32(RIDGE) * x
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1, CLIP / np.maximum(norms, 1e-30))
        added: NDArray[np.float64] = clipped.sum(axis=0, dtype=np.float64)
        _ = work.model - (added / users + rng.normal(scale=NOISE, size=columns))
        return added

    serve(("numpy", "scipy"), run_round, total)


if __name__ == "__main__":
    main()

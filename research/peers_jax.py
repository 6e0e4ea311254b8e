"""jax-privacy in research/peers.py: one compiled step that clips by user, adds up and adds noise."""

from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from numpy.typing import NDArray
from peers_work import CLIP, NOISE, RIDGE, asked
from worker import serve


def loss(weights: jax.Array, features: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean loss of one user's samples, plus the ridge."""
    scores = features @ weights
    return jnp.mean(jnp.logaddexp(0.0, scores) - targets * scores) + RIDGE / 2 * jnp.sum(weights**2)


def main() -> None:
    work, total = asked()
    features, targets, weights = (jnp.asarray(each, jnp.float32) for each in (work.features, work.targets, work.model))
    added = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False)

    @jax.jit
    def step(weights: jax.Array, features: jax.Array, targets: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        clipped = added(weights, features, targets)
        noise = NOISE * jax.random.normal(key, weights.shape)
        return weights - (clipped / len(features) + noise), clipped

    def run_round() -> NDArray[Any]:
        _, clipped = step(weights, features, targets, jax.random.key(1))
        return np.asarray(clipped)

    serve(("jax", "jax-privacy", "numpy"), run_round, total)


if __name__ == "__main__":
    main()

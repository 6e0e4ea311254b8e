"""What people tune a clip by: how many users it shortens, how long they are, how loud the noise is beside them.

Exact figures of users' data, which no guarantee covers: notes of them are private, and only simulations ask for them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.wire.replies import Gathered
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation

CLIP_FACTS: Mapping[str, Fact] = {
    "clipped_share_private": Fact("private", "share of the round's users that the clip shortened; simulations only"),
    "median_length_private": Fact(
        "private",
        "median l2 norm of the round's users before the clip, about the centre where there is one; simulations only",
    ),
    "noise_over_signal_private": Fact(
        "private",
        "length that the round's noise is expected to have, over that of the clipped mean before it; simulations only",
    ),
}
"""Name -> what it is, of what `clip_facts` notes."""


def with_lengths(strategy: UserLevelStrategy, computation: Computation) -> Computation:
    """The computation, nodes asked for users' lengths too where that is a simulation's business.

    Not where the server is not trusted, where noise is secure, where nodes have to say who their users are (as in a
    deployment), or where nodes are ordinary Flower clients. Nodes do not trust that: see
    `strategies.wire.protocol.answer_message`.
    """
    simulated = strategy.privacy.noise == "seeded" and not strategy.require_identities
    trusted = strategy.server_trusted and strategy.privacy.trust == "server"
    if not (simulated and trusted and strategy.wire.asks_more):
        return computation
    return replace(computation, lengths=True)


def clip_facts(gathered: Gathered, clip: float, mean: Vector, noise: float) -> dict[str, float]:
    """What a round notes of its clip; nothing where nodes did not tell.

    Args:
        gathered: the answers.
        clip: l2 norm in force.
        mean: of the clipped vectors, before noise.
        noise: l2 norm that the noise on it is expected to have.
    """
    if gathered.lengths is None:
        return {}
    told = gathered.lengths[~np.isnan(gathered.lengths)]
    signal = float(np.linalg.norm(mean))
    return {
        "clipped_share_private": float(np.mean(told > clip)) if len(told) else math.nan,
        "median_length_private": float(np.median(told)) if len(told) else math.nan,
        "noise_over_signal_private": noise / signal if signal > 0 else math.inf,
    }

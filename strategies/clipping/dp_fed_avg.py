"""Federated averaging: users train on their own data, their clipped model updates are averaged with noise."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.clipping.clipped_strategy import ClippedOptions, ClippedScheme, ClippedStrategy
from strategies.clipping.local_options import LocalOptions, local_numbers
from strategies.core.options import Found, PreparedOptions, StrategyOptions
from userdp.nodes.computations import Computation

_STEPS = 5


class DPFedAvgOptions(
    ClippedOptions, LocalOptions, PreparedOptions, restates={"clip_norm", "learning_rate", "local_steps"}
):
    """Settings of `DPFedAvg`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's model update is clipped to.")
    local_steps: int | None = Field(
        None, ge=1, description=f"Steps of each user on its own data; {_STEPS} if neither they nor epochs are given."
    )
    learning_rate: float | None = Field(
        None, gt=0, description="What the server multiplies the mean update by; default 1; 0.1 for adam."
    )
    found_by_preparation: ClassVar[tuple[str, ...]] = (
        "clip_norm",
        "local_rate",
        "learning_rate",
        "local_epochs",
        "local_batch",
        "local_optimiser",
    )

    def found(self, found: Found) -> dict[str, float]:
        """Clip and users' steps; in learnt coordinates a server's step, too, as long as one of the mean gradient."""
        # A user's own whole step is the end of its way.
        way = found.own_rate * (1 if found.whole else self.local_steps or _STEPS)
        steps = {} if self.server_optimiser == "adam" else found.steps(self.rounds, way)
        return {"clip_norm": found.clip(self.rounds) * way, "local_rate": found.own_rate, **steps}


class DPFedAvg(ClippedStrategy):
    """Clipped mean of users' model updates after some local gradient steps, plus Gaussian noise, every round.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Those of `dp_fed_sgd`, with the update in the place of
    the gradient: unit: one whole user; relation: replace-one with n public (add-or-remove for poisson and
    allocation). Whatever a user computes from its own data and the released model, its update is clipped to l2 norm
    C, so replacing a user moves the sum by at most 2C (adding or removing one by C). An update that is not finite
    counts as zero. The server's optimiser sees released values only.

    *Assumptions.* Those of `dp_fed_sgd`.
    """

    name: ClassVar[str] = "dp_fed_avg"
    summary_line: ClassVar[str] = "mean of clipped model updates after local steps, with noise, every round"
    family: ClassVar[str] = "clipping"
    masked: ClassVar[bool] = True
    cost: ClassVar[str] = "node O(steps N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "local_steps": "steps of each user on its own data",
        "local_epochs": "times that each user goes through its data",
        "local_rate": "step size of each user",
    }
    Options: ClassVar[type[StrategyOptions]] = DPFedAvgOptions
    options: DPFedAvgOptions

    def _make_scheme(self) -> ClippedScheme:
        training = self.options.local_training(_STEPS, self._default_step)
        computation = Computation("local_update", "sum", self.options.clip_norm, parameters=training.parameters())
        return self._gaussian_scheme(computation, 1.0, gradient=np.negative, numbers=local_numbers(training))

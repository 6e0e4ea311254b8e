"""Settings of strategies that clip the average of a batch to a level of the theory."""

import math

from pydantic import Field

from strategies import Given
from strategies.baselines.averaged_clipping.parameters import TheoryConstants
from strategies.baselines.samples.batch_rounds import BatchOptions
from strategies.baselines.samples.sample_options import corner_of, samples_of
from userdp.errors import BadInput


class TheoryOptions(BatchOptions):
    """Settings of strategies that clip to a level of the theory."""

    deviation: float = Field(1.0, gt=0, description="sigma: E ||sample gradient - its mean||^2 <= sigma^2.")
    failure: float = Field(0.1, gt=0, lt=1, description="beta, the chance that a risk bound fails.")

    def constants(self, given: Given, smoothness: float, spread: float = 1.0) -> TheoryConstants:
        """Public constants of the loss; ``spread`` scales the distance that the domain allows, if none is declared.

        Raises `BadInput`: no radius is declared, and the domain has none.
        """
        radius = self.radius or spread * corner_of(given)
        if not math.isfinite(radius):
            raise BadInput(
                f"strategy.radius must be declared: {given.strategy} sets its clip by it, and the domain is unbounded"
            )
        return TheoryConstants(
            samples=samples_of(given),
            dimension=given.dimension,
            epsilon=given.privacy.epsilon,
            delta=given.privacy.delta,
            radius=radius,
            smoothness=smoothness,
            deviation=self.deviation,
            failure=self.failure,
            constant=self.noise_constant,
        )

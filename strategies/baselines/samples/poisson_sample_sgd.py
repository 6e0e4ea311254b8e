"""DP-SGD on samples: each drawn sample's gradient is clipped, the noisy sum is divided by the expected batch."""

import math
from dataclasses import replace
from typing import ClassVar

from strategies import About, Given, MeanRounds, Recipe
from strategies.baselines.samples.batch_rounds import BATCH_MEANING, BatchOptions, balanced_batch, clamped_batch
from strategies.baselines.samples.poisson_samples import PoissonSamples
from strategies.baselines.samples.sample_options import MEANINGS, clipped_sum, corner_of, most_of, samples_of
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import PoissonBatches


class PoissonSampleSGD(Recipe, BatchOptions):
    """Stochastic gradient descent with a clip of every drawn sample.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, add-or-remove, round release, any loss. *Why.*
    Unit: one sample; relation: add-or-remove; N, the number of samples, is public. Each sample is drawn by its own
    secret coin at rate q = m/N, and its gradient is clipped to l2 norm R, so one sample moves the sum by at most R; the
    divisor is the public m. Rounds are Poisson-sampled Gaussians. Under ``unit = "user"`` the first max_samples samples
    of a user come or go together and move the sum by R for each one drawn: group privacy by mixtures of Gaussians
    (Ganesh 2024). Nodes draw none of those beyond. calibration = "paper" promises nothing. Every iterate is released.

    *Assumptions.* N, and for user level `max_samples`, are public. Which samples take part stays secret. The server
    is trusted. Nodes clip and draw as requested.
    """

    about: ClassVar[About] = About(
        name="poisson_sample_sgd",
        summary_line="sum of clipped gradients of randomly drawn samples with noise (DP-SGD)",
        family="sample-level",
        cost="node O(N d) over the samples drawn, one sum of d numbers up; server O(K d)",
        paper="Abadi and others 2016; Das, Kale, Xu, Zhang, Sanghavi 2023",
        needs="any loss; public number of samples",
        units=("sample", "user"),
        without_secure_noise="which samples take part comes from the seed",
        promise="sample level, or user level by group privacy at a price; against other nodes too",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            **BATCH_MEANING,
            "break_even": "length of users' mean gradients, as a share of samples' gradients, above which this has "
            "less noise than clipping users drawn at the same rate (dp_fed_sgd with sampling = 'poisson')",
        },
    )

    def scheme(self, given: Given) -> MeanRounds:
        samples, privacy = samples_of(given), given.privacy
        batch = clamped_batch(self.batch or balanced_batch(samples), samples)
        rounds, warnings = self.wanted_rounds(lambda: max(2, samples // batch))
        clip = self.clip_norm or 1.0
        sampler = PoissonSamples(given.users, batch / samples, rounds, given.seed, most_of(given), joint=False)
        if self.calibration == "paper":
            root = math.sqrt(rounds * math.log(1 / privacy.delta))
            noise = self.noise_constant * clip * root / (samples * privacy.epsilon)
            multiplier = noise * batch / clip
        else:
            multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        mechanism = GaussianMechanism(clip / batch, multiplier)
        rate = self.learning_rate or self._theory_rate(given, rounds, clip, mechanism)
        gradients = clipped_sum(given, clip)
        return self.drawn(
            given,
            sampler,
            mechanism,
            rate,
            ("nodes clip each sample as requested, and the server is trusted",),
            query=lambda index: replace(gradients, coins=sampler.coins(index)),
            divisor=float(batch),
            rounds=rounds,
            signal=clip,
            numbers={
                **{"clip_norm": clip, "sample_batch": float(batch), "learning_rate": rate},
                **_break_even(given, sampler, multiplier),
            },
            warnings=warnings,
        )

    def _theory_rate(self, given: Given, rounds: int, clip: float, mechanism: GaussianMechanism) -> float:
        """Return the step size for the distance to a minimiser, or for distance one if nothing bounds it."""
        reach = self.radius or corner_of(given)
        reach = reach if math.isfinite(reach) else 1.0
        power = clip**2 + given.dimension * mechanism.standard_deviation**2
        return min(self.half_step(given), reach / math.sqrt(rounds * power))


def _break_even(given: Given, sampler: PoissonSamples, multiplier: float) -> dict[str, float]:
    """Return the ratio of the noise in this mean gradient to that in a mean of clipped users, each over its own clip.

    Both draw at one rate, and so compute as many gradients. Users' means are clipped at their own length: a sample's
    gradient if a user's samples agree, and down to its share ``samples ** -0.5`` if they do not. So a ratio above 1
    speaks for clipping users whatever the data, and one below ``samples ** -0.5`` for clipping samples.
    """
    if sampler.most is None:
        return {}
    users = PoissonBatches(given.users, sampler.rate, sampler.rounds)
    least = users.calibrate(given.privacy.epsilon, given.privacy.delta)
    return {"break_even": multiplier / least * given.users / samples_of(given)}

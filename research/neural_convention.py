"""The epsilon that a common convention prints for a run with far fewer users: no guarantee, and there to show why.

Simulators of federated learning often have thousands of users, and print the epsilon of a million: the cohort is said
to come from a population of 10^6, of which everybody takes part in a round with chance cohort / 10^6. Where even that
is too much noise for a small cohort, the noise is that of a cohort of thousands, scaled down by the ratio of the two:

    noise of the sum = multiplier(rate = M / 10^6, rounds, epsilon, delta) * clip * cohort / M,    M = 5,000,

so that the noise of the mean is what it would be for M users. Such a model is what a federation of a million might
learn, if its users are like these. It says nothing about the people whose data were used: each of them takes part with
chance cohort / n, and the noise that hides one of them is the smaller one. The guarantee of what was really done is the
one of n users and of the noise that was added.

Both directions follow the accountant of `userdp.sampling.PoissonBatches`, for adding or removing a user.
"""

from userdp.sampling import PoissonBatches

POPULATION, COHORT = 10**6, 5_000
"""Pretended users, and those of them who take part in a round."""


def printed_epsilon(noise: float, cohort: int, rounds: int, delta: float) -> float:
    """The epsilon that would be printed for a run's noise, as if its cohort were drawn from the pretended users.

    Args:
        noise: standard deviation of the noise of a round's sum, over the clip.
        cohort: users per round.
        rounds: how many.
        delta: as the run's.
    """
    return PoissonBatches(POPULATION, cohort / POPULATION, rounds).epsilon(noise, delta)


def scaled_noise(epsilon: float, cohort: int, rounds: int, delta: float) -> float:
    """The noise of a round's sum, over the clip, that would be added to print an epsilon; arguments as above."""
    size = max(COHORT, cohort)
    return PoissonBatches(POPULATION, size / POPULATION, rounds).calibrate(epsilon, delta) * cohort / size

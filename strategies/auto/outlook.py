"""The plan of `Auto` in numbers, and what speaks against a run."""

import math

from scipy.special import gammaincc

from strategies.auto.adaptive import LOUD, uncertified
from strategies.auto.filled import Filled, doubts
from strategies.auto.level import ClassShares, Level
from strategies.auto.measuring import linear_model
from strategies.auto.releases import Movement, Shares
from strategies.auto.staged import MOVING
from strategies.auto.stages import Choice, Recentred, Stage
from strategies.core.mean_rounds import sampler_numbers
from strategies.core.public_facts import Given, PublicFacts
from strategies.core.scheme import Number, Outline
from strategies.core.ways import Course, Remaining
from userdp.accounting import Guarantee
from userdp.problems import Problem

_COMPARED = Movement.of_box(1.0)
"""What one user adds to the last comparison."""


def outline(given: Given, shares: Shares, stages: tuple[Stage, ...], guarantee: Guarantee) -> Outline:
    """The scheme of these stages in numbers."""
    sampler, p = shares.sampler, given.dimension
    gradient = [number for number, stage in enumerate(stages) if isinstance(stage, MOVING)]
    heard, chosen = shares.mechanism(0, Filled.movement), shares.mechanism(len(stages) - 1, _COMPARED)
    last = sampler.multiplier(gradient[-1], shares.noise_multiplier)
    numbers: dict[str, Number] = {
        "filled_noise": heard.standard_deviation,
        "gradient_rounds": len(gradient),
        "measuring_share": sum(sampler.shares[: gradient[0]]),
        "choice_share": sampler.shares[-1],
        "choice_noise": chosen.standard_deviation,
        "noise_multiplier": shares.noise_multiplier,
    }
    for number, stage in enumerate(stages):
        if isinstance(stage, Level | ClassShares):
            numbers["constant_noise"] = shares.mechanism(number, stage.movement).standard_deviation
    if uncertified(given.problem):
        numbers["gradient_users"] = round(sampler.expected(gradient[-1]))
    # In units of the clip, to which a typical user is as long.
    noise = sampler.sensitivity_factor * last * math.sqrt(p) / sampler.expected(gradient[-1])
    share = _remaining(noise**2 / len(gradient), given)
    # Of a chi-square with p degrees of freedom to exceed p / share.
    numbers["no_better_chance"] = float(gammaincc(p / 2, p / share / 2))
    # Steps of plain coordinates that are not measured may be too short.
    short = any(isinstance(stage, Recentred) and not stage.measured for stage in stages)
    course = Course(steps=len(gradient), rate=given.default_step, deviation=0.0) if short else None
    return Outline(
        path=Remaining(share=share, course=course),
        rounds=len(stages),
        cohort=given.users,
        users_needed=1,
        noise=noise,
        signal=1.0,
        numbers=numbers | sampler_numbers(sampler, guarantee),
        warnings=(
            *doubts(heard.standard_deviation),
            *_warnings(given.problem, noise / math.sqrt(len(gradient)), chosen.standard_deviation),
        ),
    )


def _remaining(share: float, given: Given) -> float:
    """The share of the initial model's excess risk that noise leaves, from that of one direction."""
    model = linear_model(given.problem)
    if model is not None:
        # Equally curved in all d coordinates of a score, in which users' first gradients are as long as d of its
        # slopes.
        return share * model.width
    # A gradient that all users share is shorter than each one's where theirs lie in other columns. The choice
    # keeps what that costs below what the initial model does.
    return max(share, min(1.0, share * _apart(given.problem, given.public)))


def _apart(problem: Problem, public: PublicFacts) -> float:
    """What users' squared lengths are over that of the gradient they share: 1 where all users have all columns.

    Of p columns a user's samples touch k. Were all columns equally frequent, it would be p / k; were all users to
    touch the same ones, 1. This is the (geometric) middle of the two.
    """
    p, sparsity = problem.dimension, problem.certificate.sparsity
    if sparsity is None:
        return 1.0
    if public.samples is not None:
        samples = max(1, public.samples // public.users)
    else:
        samples = public.max_samples or public.min_samples
    return math.sqrt(p / min(p, sparsity * samples))


def _warnings(problem: Problem, noise: float, doubt: float) -> tuple[str, ...]:
    """What speaks against training at all, from the noise of all gradients together and of the last comparison."""
    found, more = [], "bring more users or raise privacy.epsilon; the initial model may well be the better one"
    # Of losses with a landscape the forecast tells.
    if noise >= (LOUD if uncertified(problem) else 1) and problem.landscape is None:
        found.append(
            f"the noise of all gradients together is {noise:.3g} times as long as a typical user's gradient: {more}"
        )
    if Choice.doubts * doubt >= 0.5:
        found.append(
            f"the noise on the share of users who are better off ({doubt:.3g}) hides whether any is, so "
            f"that no model would be taken back: {more}"
        )
    return tuple(found)

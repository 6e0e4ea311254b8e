"""The contract of samplers: no attack on the cohorts that a sampler draws beats the price that it states.

A small run is drawn for many seeds, and by the operating system. An attacker who knows all other users adds up what
the rounds release, along one user's vector, and decides by a threshold whether the user had it. What such a test gains
is a lower bound on delta, whatever law the cohorts have: a price below that bound is no price of these cohorts.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from userdp.accounting import Cost, Privacy, Relation, epsilon_of
from userdp.errors import BadInput, insist
from userdp.sampling.base import NamedSampler, Wanted
from userdp.state import put_back, state_of

SEEDS = 1000
ERRORS = 5.0  # A bound lies so many standard errors on the safe side: a sound sampler fails once in a million draws.
DELTA = 1e-2
EPSILONS = (0.5, 4.0)
_THRESHOLDS = 60
_ROUNDING = 1e-6
_SMALL = Wanted(users=40, rounds=7, cohort=8)  # users return within these rounds
_SMALL_BY_PARTICIPATIONS = Wanted(users=40, rounds=7, participations=2)

Taken = NDArray[np.bool_]  # (draws, rounds, users): who takes part
RELATIONS: tuple[Relation, ...] = get_args(Relation)


@cache
def check_sampler(kind: type[NamedSampler]) -> None:
    """Check that a sampler draws what it prices, states its relation, and can be charged and resumed.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and the remedy.
    """
    small = _SMALL if kind.sized_by == "cohort" else _SMALL_BY_PARTICIPATIONS
    default = kind.of(small)
    check_made(default, small)
    check_secret_draws(default, small)
    for relation in RELATIONS:
        wanted = replace(small, relation=relation)
        try:
            sampler = kind.of(wanted)
        except BadInput:
            continue  # it has no price under that relation
        if sampler.relation == relation:  # the others' price is for another relation, and settings that ask are refused
            check_price(sampler, wanted)


def check_made(sampler: NamedSampler, wanted: Wanted) -> None:
    """Check that a sampler is the wanted one, with a relation, the sensitivity of that relation, and equal noise."""
    insist(sampler, sampler.users == wanted.users, f"draws from {sampler.users} users, and there are {wanted.users}")
    insist(sampler, sampler.rounds >= wanted.rounds, f"has {sampler.rounds} rounds for {wanted.rounds}: draw them all")
    relation = sampler.relation
    insist(sampler, relation in RELATIONS, f"has relation = {relation!r}: state one of {', '.join(RELATIONS)}")
    least = 2 if relation == "replace_one" else 1
    insist(
        sampler,
        sampler.sensitivity_factor >= least,
        f"has sensitivity_factor = {sampler.sensitivity_factor:g}, and one user moves a sum of clipped vectors by "
        f"{least} clips under {relation}: leave it to `Sampler`",
    )
    insist(
        sampler,
        sampler.unit == "user" and not sampler.of_samples,
        "protects samples: draw users, and leave unit and of_samples to `Sampler`",
    )
    seed = wanted.secret_seed if sampler.secret else wanted.seed
    kept = "secret_seed, which is None where the operating system draws" if sampler.secret else "seed"
    insist(sampler, sampler.seed == seed, f"has the seed {sampler.seed!r}: take `Wanted`.{kept}")
    even = all(sampler.multiplier(index, 1.0) == 1.0 for index in range(min(sampler.rounds, 1000)))
    insist(sampler, even, "prices rounds of unequal noise: rounds of named samplers have equal noise")


def check_price(sampler: NamedSampler, wanted: Wanted) -> None:
    """Check a sampler's epsilons, ledger and guarantee against what it draws."""
    tables = [_drawn(sampler, (replace(wanted, seed=seed, secret_seed=seed) for seed in range(SEEDS)))]
    if sampler.secret:
        tables.append(_drawn(sampler, (replace(wanted, secret_seed=None) for _ in range(SEEDS))))
    for taken in tables:
        sizes = taken.sum(axis=2).mean(axis=1)
        off = abs(float(sizes.mean()) - sampler.expected_batch)
        insist(
            sampler,
            off <= ERRORS * float(sizes.std()) / math.sqrt(len(sizes)) + _ROUNDING,
            f"draws {sizes.mean():.4g} users per round and states expected_batch = {sampler.expected_batch:.4g}",
        )
    for epsilon in EPSILONS:
        noise = sampler.calibrate(epsilon, DELTA)
        _check_ledger(sampler, noise, epsilon)
        for rounds in sorted({1, sampler.rounds}):
            price = sampler.epsilon(noise, DELTA, rounds)
            for taken in tables:
                least = least_delta(sampler, taken[:, :rounds], noise, price)
                insist(
                    sampler,
                    least <= DELTA * (1 + _ROUNDING),
                    f"prices less than it draws under {sampler.relation}: {rounds} rounds with noise multiplier "
                    f"{noise:.4g} are to cost epsilon = {price:.4g} at delta = {DELTA:g}, and an attack on the drawn "
                    f"cohorts takes delta = {least:.4g} at least: draw the cohorts that `epsilon` is computed for",
                )


def least_delta(sampler: NamedSampler, taken: Taken, noise: float, epsilon: float) -> float:
    """Return the delta that attacks on these rounds take at least, if their epsilon is this."""
    reach = 2 if sampler.relation == "replace_one" else 1
    deviation = noise * sampler.sensitivity_factor  # in clips, per round
    counts = taken.sum(axis=1)  # (draws, users)
    if not sampler.secret:  # everybody knows how often each user takes part
        exact = epsilon_of(Cost(noise_multiplier=deviation / reach), int(counts.max()), DELTA)
        return DELTA if exact <= epsilon * (1 + _ROUNDING) else math.inf
    deviation *= math.sqrt(taken.shape[1])
    total = counts.sum(axis=1, keepdims=True)
    half = len(counts) // 2
    often = int(counts[:half].sum(axis=0).argmax())
    found = 0.0
    # The vectors of all others are zero, or opposite to the user's; the neighbour's is opposite, or absent.
    others_opposite = (2 * counts - total, -total + 0 * counts if reach == 2 else counts - total)
    for one, other in ((counts, -counts if reach == 2 else 0 * counts), others_opposite):
        for seen in (np.s_[:, :], np.s_[half:, often : often + 1]):  # each user alike, and the most frequent one
            found = max(found, _attack(one[seen], other[seen], deviation, epsilon))
    return found


def _attack(one: NDArray[np.int64], other: NDArray[np.int64], deviation: float, epsilon: float) -> float:
    """Return the delta of the best threshold between two laws of means (draws, users), in noise of this deviation."""
    reach = 3 * deviation
    thresholds = np.linspace(min(one.min(), other.min()) - reach, max(one.max(), other.max()) + reach, _THRESHOLDS)
    p, q = (_above(means, thresholds / deviation, deviation) for means in (one, other))  # (draws, thresholds)
    most = math.exp(epsilon)
    gained = np.hstack([p - most * q, q - most * p, (1 - p) - most * (1 - q), (1 - q) - most * (1 - p)])
    return float((gained.mean(axis=0) - ERRORS * gained.std(axis=0) / math.sqrt(len(gained))).max())


def _above(means: NDArray[np.int64], thresholds: NDArray[np.float64], deviation: float) -> NDArray[np.float64]:
    """Return (draws, thresholds): how likely a mean with noise is above, on average over the users of a draw."""
    levels, places = np.unique(means, return_inverse=True)
    cells = np.arange(len(means))[:, None] * len(levels) + places.reshape(means.shape)
    shares = np.bincount(cells.ravel(), minlength=len(means) * len(levels)) / means.shape[1]
    return np.asarray(shares.reshape(len(means), -1) @ ndtr(levels[:, None] / deviation - thresholds))


def _drawn(sampler: NamedSampler, wanted: Iterator[Wanted]) -> Taken:
    """Return who takes part, for samplers of all these settings; check the form of each cohort."""
    drawn = []
    for one in wanted:
        each = type(sampler).of(one)
        taken = np.zeros((each.rounds, each.users), dtype=bool)
        for index in range(each.rounds):
            cohort = np.asarray(each.cohort(index))
            rising = cohort.ndim == 1 and cohort.dtype.kind == "i" and bool((np.diff(cohort) > 0).all())
            inside = rising and (cohort.size == 0 or (cohort[0] >= 0 and cohort[-1] < each.users))
            insist(sampler, inside, "draws no rising indices of users: return each once, as int64")
            insist(sampler, np.array_equal(cohort, each.cohort(index)), "draws one round twice: return the same users")
            taken[index, cohort] = True
        drawn.append(taken)
    return np.stack(drawn)


def check_secret_draws(sampler: NamedSampler, wanted: Wanted) -> None:
    """Check that secret cohorts come from the operating system if they should, and go on after a stop."""
    for index in (-1, sampler.rounds):
        try:
            sampler.cohort(index)
        except BadInput:
            continue
        insist(sampler, False, f"draws round {index} of {sampler.rounds}: call `checked_round` in `cohort`")
    if not sampler.secret:
        return
    secret = replace(wanted, secret_seed=None)
    one, other, again = (type(sampler).of(secret) for _ in range(3))
    check_made(one, secret)
    first, second = ([each.cohort(index).tolist() for index in range(each.rounds)] for each in (one, other))
    insist(sampler, first != second, "draws the same secret cohorts in two runs: draw them by `secrets`")
    insist(sampler, one.drawn is not None, "forgets its secret cohorts: hold them in `drawn`, as `RandomCohorts` does")
    put_back(again.drawn, state_of(one.drawn))
    last = one.rounds - 1
    insist(
        sampler,
        np.array_equal(again.cohort(last), first[last]),
        "draws a round anew after a stop: let `drawn` remember the cohort of the last round",
    )
    try:
        one.ledger(1e3, Privacy(1.0, DELTA, noise="secure"))
        sampler.ledger(1e3, Privacy(1.0, DELTA, noise="secure"))
    except BadInput:
        return
    insist(sampler, False, "has a ledger for secret cohorts of a public seed: leave `ledger` to `Sampler`")


def _check_ledger(sampler: NamedSampler, noise: float, epsilon: float) -> None:
    price = sampler.epsilon(noise, DELTA)
    told = f"noise multiplier {noise:.6g}, calibrated for epsilon = {epsilon:g}"
    insist(sampler, price <= epsilon * (1 + _ROUNDING), f"has a price of epsilon = {price:.6g} for {told}")
    guarantee = sampler.guarantee(noise, DELTA, "anybody", ())
    insist(
        sampler,
        guarantee.relation == sampler.relation and math.isclose(guarantee.epsilon, price, rel_tol=_ROUNDING),
        "promises another relation or epsilon than it prices: leave `guarantee` to `Sampler`",
    )
    ledger = sampler.ledger(noise, Privacy(epsilon * (1 + _ROUNDING), DELTA))
    before = 0.0
    for index in range(sampler.rounds):
        ledger.charge(sampler.cohort(index))
        spent, stated = ledger.epsilon(), sampler.epsilon(noise, DELTA, index + 1)
        insist(
            sampler,
            math.isclose(spent, stated, rel_tol=_ROUNDING) and stated >= before,
            f"is charged {spent:.6g} after {index + 1} rounds and prices them {stated:.6g}, after {before:.6g}: let "
            "`epsilon` grow with the rounds, and leave `ledger` to `Sampler`",
        )
        before = stated

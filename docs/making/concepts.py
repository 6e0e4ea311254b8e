"""The numbers of docs/concepts.md, computed by the accountants of runs."""

import math

from userdp.accounting import Cost, calibrate_noise, epsilon_of, group_privacy
from userdp.audit import Approximate
from userdp.sampling import CyclicBatches, DisjointBatches, PoissonBatches, Sampler

EPSILON, DELTA = 1.0, 1e-6
SAMPLES = (1, 2, 5, 10, 50)
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
NOISE = 10.0
ROUNDS = (1, 2, 5, 10, 20, 50, 100)
USERS, COHORT, DRAWN = 10_000, 1_000, 40


def samplers(users: int, cohort: int, rounds: int) -> dict[str, Sampler]:
    """Return four ways of drawing the cohorts of some rounds."""
    return {
        "everybody, every round": DisjointBatches(users, users, rounds),
        "disjoint cohorts, dealt anew": DisjointBatches(users, cohort, rounds * cohort // users),
        "cohorts in turn": CyclicBatches(users, cohort, rounds * cohort // users),
        "a secret coin each": PoissonBatches(users, cohort / users, rounds),
    }


def groups() -> str:
    """Return the guarantee of a user with several samples, by group privacy."""
    heading = f"By group privacy, epsilon = {EPSILON:g} and delta = {DELTA:g} for one *sample* give a *user*:"
    rows = [[f"{held}", *(f"{number:.3g}" for number in group_privacy(EPSILON, DELTA, held))] for held in SAMPLES]
    return f"{heading}\n\n{_table(['samples held', 'epsilon', 'delta'], rows)}"


def epsilons() -> str:
    """Return an attacker's largest success, by epsilon."""
    rows = [
        [f"{each:g}", f"{math.exp(each):,.2f}", f"{Approximate(each, DELTA).membership_accuracy:.2%}"]
        for each in EPSILONS
    ]
    head = ["epsilon", "times as likely, at most (e^epsilon)", "right in telling two data sets apart, at most"]
    return f"With delta = {DELTA:g}:\n\n{_table(head, rows)}"


def cohorts() -> str:
    """Return the noise of the mean by the way of drawing cohorts, at one epsilon and one number of rounds."""
    rows = []
    for name, sampler in samplers(USERS, COHORT, DRAWN).items():
        noise = sampler.calibrate(EPSILON, DELTA) * sampler.sensitivity_factor / sampler.expected_batch
        rows.append([name, f"{sampler.expected_batch:,.0f}", _relation(sampler), f"{1e3 * noise:.3g}"])
    heading = f"{USERS:,} users, {DRAWN} rounds, epsilon = {EPSILON:g} and delta = {DELTA:g}:"
    head = ["who takes part", "users per round", "protects against", "noise of a mean, in thousandths of the clip"]
    return f"{heading}\n\n{_table(head, rows)}"


def relations() -> str:
    """Return the epsilon of the same noise under either relation."""
    noise = calibrate_noise(EPSILON, DELTA, 1)
    added, replaced = (epsilon_of(Cost(noise / factor), 1, DELTA) for factor in (1, 2))
    heading = f"Noise {noise:.3g} times the clip, on the sum of one round, at delta = {DELTA:g}:"
    rows = [
        ["one user is added or removed", "the clip", f"{added:.3g}"],
        ["one user is replaced", "twice the clip", f"{replaced:.3g}"],
    ]
    return f"{heading}\n\n{_table(['what differs', 'moves the sum by at most', 'epsilon'], rows)}"


def composition() -> str:
    """Return the joint cost of rounds: added up, and exact."""
    one = epsilon_of(Cost(NOISE), 1, DELTA)
    rows = [
        [f"{rounds}", f"{rounds * one:.3g}", f"{rounds * DELTA:.3g}", f"{epsilon_of(Cost(NOISE), rounds, DELTA):.3g}"]
        for rounds in ROUNDS
    ]
    heading = f"The standard deviation of each round's Gaussian noise is {NOISE:g} times the sensitivity."
    head = ["rounds", "epsilons added up", "with deltas added up", f"exact epsilon, at delta = {DELTA:g}"]
    return f"{heading}\n\n{_table(head, rows)}"


def _relation(sampler: Sampler) -> str:
    return "replacing a user" if sampler.relation == "replace_one" else "adding or removing a user"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])

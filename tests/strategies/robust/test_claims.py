"""Our claims about our strategies, measured; the figures are printed whoever wins."""

import statistics

import numpy as np
import pytest

from simulations.engines.grids import LocalGrid, shards
from strategies import DPFedSGD, LocalizedRobustSGD, PublicFacts, model_vector
from strategies.baselines.robust.hard_instance import HardInstance
from userdp.accounting import Privacy
from userdp.data import Gaussian, SyntheticFederation
from userdp.nodes.node import Node
from userdp.problems import Linear, Quadratic

OURS = {"estimate": "winsorized", "kernel": "ramp", "test": "min_score"}
PAPER = {"estimate": "debiased", "kernel": "exp", "test": "above_threshold"}
SEEDS = range(5)


def relative_risk(strategy, federation, problem, grid):
    x = model_vector(strategy.start(grid).arrays)
    return problem.excess_risk(x, federation) / problem.excess_risk(problem.initial(), federation)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("population", "bound", "deviation", "share"),
    [(Gaussian(dimension=10), 8.0, 1.0, 0.1), (HardInstance(dimension=10), 60.0, 10.0, 1 / 3)],
    ids=["deviation_one", "hard_instance"],
)
def test_winsorized_ramp_min_score_beats_the_papers_variant(population, bound, deviation, share, capsys):
    users, samples = 100_000, 100
    problem, privacy = Linear(10, bound=bound), Privacy(1.0, 1e-6)
    facts = PublicFacts(users=users, min_samples=samples, max_samples=samples, samples=users * samples)
    risks = {"ours": [], "paper, calibrated": [], "paper, its constants": [], "dp_fed_sgd": []}
    for seed in SEEDS:
        federation = SyntheticFederation(population, users=users, samples_per_user=samples, seed=seed)
        grid = LocalGrid([Node(problem, federation, block) for block in shards(users)])
        strategies = {
            "ours": LocalizedRobustSGD(deviation=deviation, **OURS).strategy(problem, facts, privacy, seed=seed),
            "paper, calibrated": LocalizedRobustSGD(deviation=deviation, **PAPER).strategy(
                problem, facts, privacy, seed=seed
            ),
            "paper, its constants": LocalizedRobustSGD(deviation=deviation, constants="paper", **PAPER).strategy(
                problem, facts, privacy, seed=seed
            ),
            "dp_fed_sgd": DPFedSGD(clip_norm=4.0).strategy(problem, facts, privacy, seed=seed),
        }
        for name, strategy in strategies.items():
            risks[name].append(relative_risk(strategy, federation, problem, grid))
    medians = {name: statistics.median(values) for name, values in risks.items()}
    with capsys.disabled():
        print(f"\nexcess risk, median of {len(SEEDS)} seeds, initial model = 1: {medians}")
    assert medians["ours"] <= share * min(medians["paper, calibrated"], medians["paper, its constants"])
    assert medians["ours"] < 1


def slope(sizes, values):
    return np.polyfit(np.log(sizes), np.log(values), 1)[0]


def test_noise_falls_with_users_samples_and_epsilon_as_the_theory_says():
    """The sensitivity is of order rho / B with rho of order 1 / sqrt(m): slopes -1 in n, -1/2 in m, -1 in epsilon."""
    users = [1000, 2000, 4000, 8000, 16000]
    samples = [10, 40, 160, 640, 2560]
    epsilons = [0.5, 1.0, 2.0, 4.0, 8.0]

    def noise(users, samples, epsilon):
        facts = PublicFacts(users=users, min_samples=samples, max_samples=samples)
        problem = Quadratic(20, bound=8.0, radius=1.0)
        settings = {"deviation": 1.0, "learning_rate": 1.0, "batch": users, "phases": 1}
        return LocalizedRobustSGD(**settings).strategy(problem, facts, Privacy(epsilon, 1e-6), seed=0).plan.noise

    # The radius itself falls a little with n (a larger batch needs a smaller share of agreement), hence the tolerance.
    assert slope(users, [noise(n, 100, 1.0) for n in users]) == pytest.approx(-1, abs=0.15)
    assert slope(samples, [noise(2000, m, 1.0) for m in samples]) == pytest.approx(-0.5, abs=1e-9)
    assert slope(epsilons, [noise(4000, 100, e) for e in epsilons]) == pytest.approx(-1, abs=0.15)

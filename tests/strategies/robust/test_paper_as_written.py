"""The paper's own algorithm from a configuration: every part of it is in use, and what it comes to is said."""

import pandas as pd
import pytest
from examples import SHIPPED

from simulations.comparison.config import load_comparison
from simulations.runs.build import make_strategy, public_facts, starting_problem
from simulations.runs.run import run
from userdp.estimators import Debiased, ExpKernel
from userdp.mechanisms import AboveThreshold

PATH = SHIPPED["robust-paper"]
PAPER = {"paper-median": "median", "paper-trimmed-mean": "trimmed_mean"}


def cell_of(strategy, epsilon=4.0):
    cells = load_comparison(PATH).cells
    found = (cell for cell in cells if cell.strategy == strategy and cell.grid == {"privacy.epsilon": epsilon})
    return next(found)


@pytest.mark.parametrize(("label", "statistic"), PAPER.items())
def test_every_part_is_the_papers(label, statistic):
    config = cell_of(label).config()
    strategy = make_strategy(config, starting_problem(config), public_facts(config))
    phases = strategy.scheme.phases
    assert phases[0].gradient == Debiased(statistic, phases[0].gradient.radius)
    assert all(isinstance(phase.test.kernel, ExpKernel) for phase in phases)
    assert {type(phase.test) for phase in phases} == {AboveThreshold}
    assert len(phases) > 1
    rates = [phase.learning_rate for phase in phases]
    assert rates == sorted(rates, reverse=True)
    assert strategy.plan.guarantee.holds
    assert strategy.plan.guarantee.epsilon <= 4.0


@pytest.mark.slow
@pytest.mark.parametrize("label", PAPER)
def test_it_runs_and_its_constants_come_to_nothing_here(label, tmp_path):
    """All phases pass, and the initial model would have done as well, as the page's table says."""
    outcome = run(cell_of(label).config(), directory=tmp_path, report=False)
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    assert outcome.result["guarantee"]["holds"]
    assert (rounds["fact.passed"].dropna() == 1.0).all()
    assert outcome.result["better_than_initial"] is False

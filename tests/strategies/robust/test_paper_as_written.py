"""The paper's own algorithm from a configuration: every part of it is in use, and what it comes to is said."""

from pathlib import Path

import pandas as pd
import pytest

from simulations.comparison.config import load_comparison
from simulations.runs.build import make_plan
from simulations.runs.run import run
from strategies import STRATEGIES
from userdp.estimators import Debiased, ExpKernel
from userdp.mechanisms import AboveThreshold

PATH = Path(__file__).resolve().parents[3] / "simulations" / "configs" / "robust-paper.toml"
PAPER = {"paper-median": "median", "paper-trimmed-mean": "trimmed_mean"}


def cell_of(strategy, epsilon=4.0):
    cells = load_comparison(PATH).cells
    found = (cell for cell in cells if cell.strategy == strategy and cell.grid == {"privacy.epsilon": epsilon})
    return next(found)


@pytest.mark.parametrize(("label", "statistic"), PAPER.items())
def test_every_part_is_the_papers(label, statistic, monkeypatch):
    made = []
    strategy = STRATEGIES["localized_robust_sgd"]
    original = strategy._make_plan
    monkeypatch.setattr(strategy, "_make_plan", lambda self: made.append(self) or original(self))
    plan = make_plan(cell_of(label).config())
    chosen = made[0].scheme.chosen
    assert chosen.estimator == Debiased(statistic, chosen.estimator.radius)
    assert isinstance(chosen.kernel, ExpKernel)
    assert {type(phase.test) for phase in chosen.phases} == {AboveThreshold}
    assert len(chosen.phases) > 1
    rates = [phase.learning_rate for phase in chosen.phases]
    assert rates == sorted(rates, reverse=True)
    assert plan.guarantee.holds
    assert plan.guarantee.epsilon <= 4.0


@pytest.mark.slow
@pytest.mark.parametrize("label", PAPER)
def test_it_runs_and_its_constants_come_to_nothing_here(label, tmp_path):
    """As the page's table says of it: all phases pass, and the initial model would have done as well."""
    outcome = run(cell_of(label).config(), directory=tmp_path, report=False)
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    assert outcome.result["guarantee"]["holds"]
    assert (rounds["fact.passed"].dropna() == 1.0).all()
    assert outcome.result["better_than_initial"] is False

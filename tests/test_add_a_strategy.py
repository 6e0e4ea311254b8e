"""The walk-through of docs/add-a-strategy.md, run as written."""

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import Wild, federation_of, final, gathered, make, run

from simulations.listings import strategies
from strategies import registry
from userdp.data import Gaussian, SyntheticFederation
from userdp.problems import Quadratic

PAGE = Path(__file__).parent.parent / "docs" / "add-a-strategy.md"


@pytest.fixture
def sign_descent():
    """The strategy of the page's one block of Python, as a module would hold it."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType("strategies.sign_descent")
    exec(compile(block, str(PAGE), "exec"), module.__dict__)
    return module.SignDescent


def test_the_strategy_of_the_page_trains(sign_descent):
    federation = SyntheticFederation(Gaussian(dimension=5, mean=0.2), users=2000, seed=1, samples_per_user=10)
    problem = Quadratic(5, 5.0, 5.0)
    method = make(sign_descent, problem, 2000)
    result = run(method, federation)
    risk = problem.excess_risk(final(result), federation)
    assert risk < 0.3 * problem.excess_risk(problem.initial(), federation)
    assert 0.99 < result.guarantee.epsilon <= 1
    assert result.rounds[-1].spent_epsilon == pytest.approx(result.guarantee.epsilon)
    np.testing.assert_array_equal(final(result), final(run(make(sign_descent, problem, 2000), federation)))


def test_the_guarantee_of_the_page_holds_for_neighbours(sign_descent):
    method = make(sign_descent, Wild(2), 5, delta=1e-3, clip_norm=0.7)
    rng = np.random.default_rng(0)
    for _ in range(100):
        data = rng.integers(0, 10, (5, 2))
        neighbour = data.copy()
        neighbour[rng.integers(5)] = rng.integers(0, 10, 2)
        means = [gathered(method, federation_of(users), 0, np.zeros(2)).values / 5 for users in (data, neighbour)]
        assert np.linalg.norm(means[0] - means[1]) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-12)


def test_one_line_in_the_registry_is_enough_to_be_listed(sign_descent, monkeypatch):
    monkeypatch.setitem(registry.STRATEGIES, sign_descent.name, sign_descent)
    entry = next(entry for entry in strategies() if entry["name"] == "sign_descent")
    assert "replacing a user moves the mean by at most 2C/n" in entry["guarantee"]

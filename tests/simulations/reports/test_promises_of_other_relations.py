"""A promise for adding or removing a user, told as one for replacing a user: only where it promises something."""

import pytest
from examples import changed

from simulations.api.plans import show_plan
from simulations.config.run_config import parse_config
from simulations.reports.explain import NOTHING_PROMISED, shown_promise
from simulations.reports.report import _numbers
from simulations.runs.build import make_plan
from userdp.accounting.composition import promises_something


@pytest.mark.parametrize(("delta", "users", "something"), [(1e-5, 1000, True), (1e-3, 1000, False), (0.3, 2, True)])
def test_a_delta_of_one_in_all_users_promises_nothing(delta, users, something):
    """A mechanism that publishes one user drawn at random keeps to it."""
    assert promises_something(delta, users) is something
    assert (shown_promise(2.0, delta, users) == NOTHING_PROMISED) is not something


@pytest.mark.parametrize(("epsilon", "nothing"), [(1.0, False), (8.0, True)])
def test_a_plan_prints_no_delta_that_promises_nothing(capsys, monkeypatch, epsilon, nothing):
    monkeypatch.setenv("COLUMNS", "200")
    strategy = {"kind": "dp_fed_sgd", "rounds": 4, "sampling": "poisson", "cohort": 40}
    plan = make_plan(parse_config(changed(strategy=strategy, privacy__epsilon=epsilon, privacy__delta=1e-4)))
    assert (plan.numbers["replace_one_delta"] >= 1 / plan.users) is nothing
    show_plan(plan, plan.as_dict(), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if "replace_one" in line]
    assert len(lines) == 2
    assert all((NOTHING_PROMISED in line) is nothing for line in lines)
    in_the_report = {name: value for name, value, _ in _numbers(plan.as_dict())}
    for name in ("replace one epsilon", "replace one delta"):
        assert (in_the_report[name] == NOTHING_PROMISED) is nothing

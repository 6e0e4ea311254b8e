"""The first round of auto and of a preparation, which stops a run that has nothing to train on."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers import federation_of, make, run, strategy_of
from resumable import Kept
from test_adaptive import uncertified
from test_auto import Watched

import simulations
from simulations.reports.standing import Usable, standing
from strategies import Auto, PublicFacts
from strategies.auto.preparation import FEWEST, MOST_NOISE, Filled, LearnCoordinates, doubts
from strategies.core.recipe import meanings_of
from strategies.core.run_state import Resumed
from strategies.registry import STRATEGIES
from userdp.accounting import Privacy
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Logistic, Quadratic, Softmax

USERS = 800
SENTENCE = "has a row in which every declared column and the target hold a cell that the model can use"
DECLARED = {
    "user": "who",
    "target": "ill",
    "positive": "yes",
    "features": ["height", "visited"],
    "ranges": {"height": [150.0, 200.0], "visited": [0.0, 9.0]},
    "users": USERS,
    "test_fraction": 0.0,
    "problem": "logistic",
    "epsilon": 4.0,
    "delta": 1e-5,
    "output": {"reference": False, "anyway": True},
    "progress": False,
}
AUTO = {"strategy": "auto"}
PREPARED = {"strategy": {"kind": "dp_fed_sgd", "rounds": 3}, "preparation": "learn"}
either = pytest.mark.parametrize("settings", [AUTO, PREPARED], ids=["auto", "prepared"])


def table(visited, users=USERS, rows=2):
    """People with as many rows, of whom ``visited`` says what their cells in that column are, from its number."""
    rng, total = np.random.default_rng(0), users * rows
    return pd.DataFrame(
        {
            "who": np.repeat(np.arange(users), rows),
            "height": rng.uniform(150, 200, total).round(1),
            "visited": [str(visited(number)) for number in range(total)],
            "ill": rng.choice(["yes", "no"], total),
        }
    )


def half_silent(users, silent, rows=1):
    """People of two columns and so many rows, of whom the first ones' first row cannot be used."""
    cells = np.random.default_rng(1).uniform(-1, 1, (users, rows, 2))
    cells[:silent, 0, 0] = np.nan
    return federation_of(cells, targets=np.arange(users * rows) % 2)


def methods(users, epsilon, **more):
    """Auto, on a loss whose coordinates are learnt, and a strategy that is prepared."""
    problem = Logistic(2, 2.0, 5.0, intercept=True)
    own = {"rounds": 3, "preparation": LearnCoordinates}
    return (
        make(Auto, problem, users, epsilon, 1e-6, **more),
        make(STRATEGIES["dp_fed_sgd"], problem, users, epsilon, 1e-6, **own, **more),
    )


# --- Formal guarantee ------------------------------------------------------------------------------------------------


def test_each_user_says_whether_it_is_heard_and_with_which_share_and_no_value_matters():
    problem = Softmax(2, 1, 3.0, 1.0)
    rows = np.array([[0.0], [9e9], [np.nan], [1.0], [1.0], [1.0], [np.inf]])
    users = federation_of(rows, sizes=[2, 2, 1, 1, 1], targets=[0, 1, 0, 0, 1, 7, 0])
    asked = Computation("filled", "rows", 0.5)
    answer = Node(problem, users, np.arange(5)).compute(problem.initial(), np.arange(5), asked)
    assert answer.values.ravel().tolist() == [0.5, 0.25, 0.5, -0.5, -0.5]
    assert answer.non_finite == 0
    assert (np.ptp(answer.values), np.abs(answer.values).max()) == (Filled.movement.replaced, Filled.movement.added)


@pytest.mark.parametrize("rows", [1, 3])
def test_who_has_a_row_that_can_be_used_adds_to_the_rounds_that_follow(rows):
    problem, users = Logistic(2, 2.0, 5.0), half_silent(10, 4, rows)
    node = Node(problem, users, np.arange(10))
    told = node.compute(problem.initial(), np.arange(10), Computation("filled", "rows", 0.5)).values.ravel() + 0.5
    gradients = node.compute(problem.initial(), np.arange(10), Computation(reduce="rows", clip_norm=1.0))
    heard = np.any(gradients.values != 0, axis=1)
    assert np.array_equal(told > 0, heard)
    assert told.mean() == pytest.approx((heard.mean() + 1 - 0.4 / rows) / 2)
    assert gradients.non_finite == (4 if rows == 1 else 0)


@pytest.mark.parametrize("problem", [Logistic(2, 2.0, 5.0), Quadratic(2, 5.0, 3.0), uncertified(5.0)])
def test_it_comes_first_for_every_loss_and_takes_a_hundredth(problem):
    method = make(Auto, problem, 400, 4.0)
    shares = method.scheme.sampler.shares
    assert isinstance(method.scheme.stages[0], Filled)
    assert shares[0] == 0.01
    assert sum(shares) == pytest.approx(1.0)
    assert not any(isinstance(stage, Filled) for stage in method.scheme.stages[1:])


def test_a_preparation_gives_it_a_fifteenth_and_shares_what_it_has_in_all():
    part = LearnCoordinates(Logistic(2, 2.0, 5.0, intercept=True), PublicFacts(400), Privacy(4.0, 1e-6), 0)
    assert isinstance(part._stages[0], Filled)
    assert part.shares.sampler.shares[0] < 0.08
    assert sum(part.shares.sampler.shares) == pytest.approx(1.0)


# --- What stops ------------------------------------------------------------------------------------------------------


@either
@pytest.mark.parametrize("cell", ["1984-03-02", "soon"], ids=["dates", "words"])
def test_a_column_of_dates_or_words_stops_a_run_before_any_model(tmp_path, settings, cell):
    """One cell is a number, as one typing error in a column of dates may be: what is read does not refuse the table."""
    frame, folder = table(lambda number: "7" if number == 5 else cell), tmp_path / "run"
    with pytest.raises(RunFailed, match=SENTENCE) as stopped:
        simulations.train(frame, **DECLARED, **settings, directory=folder)
    share, noise = map(float, re.search(r"([\d.e-]+) % .* noise of ([\d.e-]+) %", str(stopped.value)).groups())
    assert share <= 10
    assert 0 < noise <= 10
    assert all(word in str(stopped.value) for word in ("private figures", "ranges", "dates", "positive", "impute"))
    kept = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("result", "guarantee", "plan", "data")}
    assert kept["result"]["error"] == str(stopped.value)
    assert 0 < kept["guarantee"]["spent_epsilon"] < 0.2 * DECLARED["epsilon"]
    assert kept["guarantee"]["epsilon"] == kept["guarantee"]["spent_epsilon"]
    assert kept["plan"]["numbers"]["filled_noise"] == pytest.approx(noise / 100, rel=0.05)
    assert kept["data"]["table_private"]["unusable"]["visited"] == 2 * USERS - 1
    assert not np.load(folder / "model.npz")["x"].any()  # the initial one
    assert not (folder / "rounds.parquet").exists() or pd.read_parquet(folder / "rounds.parquet").empty


@either
def test_with_secure_noise_a_column_without_any_cell_stops_it_too(settings):
    private = {**DECLARED, "noise": "secure"}
    with pytest.raises(RunFailed, match=SENTENCE):
        simulations.train(table(lambda _: "1984-03-02"), **private, **settings)


@either
def test_a_half_filled_table_does_not_stop(settings):
    trained = simulations.train(table(lambda number: number % 9 if number % 4 < 2 else ""), **DECLARED, **settings)
    assert trained.rounds["fact.filled_share"].iloc[0] == pytest.approx(0.5, abs=0.1)
    assert trained.guarantee.epsilon == pytest.approx(4.0, rel=1e-6)


def test_a_lagged_column_which_each_persons_first_rows_lack_trains_about_as_if_these_rows_were_not_there():
    frame = table(lambda number: "" if number % 5 < 2 else number % 7, rows=5)
    frame["ill"] = np.where(frame.height > 175, "yes", "no")
    trained, without = (
        simulations.train(one, **DECLARED | {"test_fraction": 0.2, "users": 640}, **AUTO)
        for one in (frame, frame[frame.visited != ""])
    )
    assert trained.rounds["fact.filled_share"].iloc[0] == pytest.approx(0.8, abs=0.02)
    np.testing.assert_allclose(trained.model, without.model, atol=2e-3)  # rows unheard make the constant less certain
    verdict = standing(trained.result, Usable.of(trained.rounds))
    assert (verdict.kind, verdict.title) == ("even", "Better than the best constant, without much of the data")
    assert standing(without.result, Usable.of(without.rounds)).kind == "good"


@pytest.mark.parametrize("seed", range(5))
def test_a_small_table_never_stops(seed):
    """Noise that hides the share may say anything: nothing follows."""
    for method in methods(200, 0.5, seed=seed):
        assert method.plan.numbers["filled_noise"] > MOST_NOISE
        assert len(run(method, half_silent(200, 0)).rounds) == method.plan.rounds


@pytest.mark.parametrize("told", [-0.7, -0.5, -0.41, -0.39, 0.0, 0.5])
@pytest.mark.parametrize("deviation", [0.0, MOST_NOISE, 1.01 * MOST_NOISE, 3.0])
def test_it_stops_where_the_released_share_is_below_a_tenth_and_noise_lets_it_be_told(told, deviation):
    fixed = Watched(answer=told, deviation=deviation)
    if told + 0.5 < FEWEST and deviation <= MOST_NOISE:
        with pytest.raises(RunFailed, match=SENTENCE):
            Filled().take(None, np.zeros(1), fixed)
    else:
        progress = SimpleNamespace(silent=None)
        facts = Filled().take(progress, np.zeros(1), fixed)
        assert progress.silent == max(0.0, 1 - facts["filled_share"] - 2 * deviation)
        assert facts == {"filled_share": max(told + 0.5, 0.0), "noise_deviation": deviation}
    assert bool(doubts(deviation)) == (deviation > MOST_NOISE)


# --- Before and after ------------------------------------------------------------------------------------------------


def test_a_plan_says_whether_it_can_tell():
    for many, few in zip(methods(800, 4.0), methods(100, 0.5), strict=True):
        assert not any("rows that can be used" in warning for warning in many.plan.warnings)
        assert many.plan.numbers["filled_noise"] <= MOST_NOISE < few.plan.numbers["filled_noise"]
        (told,) = [warning for warning in few.plan.warnings if "rows that can be used" in warning]
        assert f"({few.plan.numbers['filled_noise']:.2g}) hides whether any can" in told
        assert "the run stops where that share is below one in ten" in meanings_of(few.recipe)["filled_noise"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_stopped_run_that_goes_on_from_its_checkpoint_stops_again(place):
    keeper = Kept()
    with pytest.raises(RunFailed, match=SENTENCE) as first:
        run(methods(USERS, 4.0)[place], half_silent(USERS, USERS), keeper=keeper)
    assert [one.get("round") for one in keeper.kept] == [0]
    with pytest.raises(RunFailed) as again:
        run(methods(USERS, 4.0)[place], half_silent(USERS, USERS), resumed=Resumed(keeper.kept[0]))
    assert str(again.value) == str(first.value)


@pytest.mark.parametrize("place", [0, 1])
def test_a_first_round_that_was_lost_stops_nothing(place):
    """Nobody answers it, which is no answer that one's rows cannot be used."""
    problem = Logistic(2, 2.0, 5.0, intercept=True)
    kind, more = [(Auto, {}), (STRATEGIES["dp_fed_sgd"], {"rounds": 3, "preparation": LearnCoordinates})][place]

    def method():
        return strategy_of(kind, problem, PublicFacts(USERS), Privacy(4.0, 1e-6, noise="secure"), seed=0, **more)

    class Killed(Exception):
        pass

    class Dies(Kept):
        def ask(self, taken):
            super().ask(taken)
            if taken.get("round") > 0:
                raise Killed

    keeper = Dies()
    with pytest.raises(Killed):
        run(method(), half_silent(USERS, 0), keeper=keeper)
    result = run(method(), half_silent(USERS, 0), resumed=Resumed(keeper.kept[0], keeper.asked[1]))
    assert result.rounds[0].facts["filled_share"] == pytest.approx(0.5, abs=0.3)
    assert len(result.rounds) == method().plan.rounds

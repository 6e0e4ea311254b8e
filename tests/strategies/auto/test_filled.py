"""The first round of auto and of a preparation, which stops a run that has nothing to train on."""

import html
import itertools
import json
import math
import re
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from helpers import federation_of, final, make, run, strategy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from resumable import Kept
from test_adaptive import uncertified
from test_auto import Watched

import simulations
from simulations.reports.card import card
from simulations.reports.standing import Usable, standing
from strategies import Auto, PublicFacts
from strategies.auto.preparation import FEWEST, MOST_NOISE, Filled, LearnCoordinates, doubts
from strategies.auto.releases import Movement, Release
from strategies.core.recipe import meanings_of
from strategies.core.run_state import Resumed
from strategies.registry import STRATEGIES
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.errors import RunFailed
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.nodes.statistics import STATISTICS
from userdp.problems import Logistic, Poisson, Quadratic, Softmax, Squared

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
    assert answer.values.tolist() == [[0.5, 0.0], [0.25, 0.25], [0.5, 0.0], [-0.5, 0.0], [-0.5, 0.0]]
    assert answer.non_finite == 0


def test_whichever_samples_can_be_used_a_user_moves_the_sum_by_at_most_what_the_noise_is_made_for():
    """All users of up to five samples, and all their neighbours."""
    usable = [one for size in range(1, 6) for one in itertools.product([True, False], repeat=size)]
    cells = [0.0 if can else np.nan for one in usable for can in one]
    users = federation_of(np.array(cells)[:, None], sizes=[len(one) for one in usable], targets=np.zeros(len(cells)))
    problem, everybody = Logistic(1, 2.0, 5.0), np.arange(len(usable))
    asked = Computation("filled", "rows", 0.5)
    rows = Node(problem, users, everybody).compute(problem.initial(), everybody, asked).values
    apart = np.linalg.norm(rows[:, None] - rows, axis=2)
    assert (apart.max(), np.linalg.norm(rows, axis=1).max()) == (Filled.movement.replaced, Filled.movement.added)
    assert (rows.sum(axis=1) + 0.5).tolist() == [float(any(one)) for one in usable]
    assert rows[:, 0] + 0.5 == pytest.approx([(any(one) + np.mean(one)) / 2 for one in usable])


@pytest.mark.parametrize("rows", [1, 3])
def test_who_has_a_row_that_can_be_used_adds_to_the_rounds_that_follow(rows):
    problem, users = Logistic(2, 2.0, 5.0), half_silent(10, 4, rows)
    node = Node(problem, users, np.arange(10))
    told = node.compute(problem.initial(), np.arange(10), Computation("filled", "rows", 0.5)).values[:, 0] + 0.5
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


def test_a_lagged_column_which_each_persons_first_rows_lack_trains_about_as_if_these_rows_were_not_there(tmp_path):
    frame = table(lambda number: "" if number % 5 < 2 else number % 7, rows=5)
    frame["ill"] = np.where(frame.height > 175, "yes", "no")
    trained, without = (
        simulations.train(one, directory=tmp_path / name, **DECLARED | {"test_fraction": 0.2, "users": 640}, **AUTO)
        for name, one in (("all", frame), ("filled", frame[frame.visited != ""]))
    )
    assert trained.rounds["fact.filled_share"].iloc[0] == pytest.approx(0.8, abs=0.02)
    np.testing.assert_allclose(trained.model, without.model, atol=1e-6)
    verdict = standing(trained.result, Usable.of(trained.rounds))
    assert (verdict.kind, verdict.title) == ("even", "Better than the best constant, without much of the data")
    assert standing(without.result, Usable.of(without.rounds)).kind == "good"
    for one, warned in ((trained, True), (without, False)):
        usable, found = Usable.of(one.rounds), card(tmp_path / ("all" if warned else "filled"))
        assert usable is not None
        (line,) = (line for part in found["parts"] for line in part["lines"] if line["name"] == "Usable share")
        assert (line["value"], line["meaning"]) == (usable.share, usable.sentence)
        assert all(usable.sentence in html.unescape(page) for page in (repr(one), one._repr_html_(), one.page))
        assert (usable.sentence in found["first"]) == warned == ("data.impute" in usable.sentence)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_table_never_stops(seed):
    """Noise that hides the share may say anything: nothing follows."""
    for method in methods(200, 0.5, seed=seed):
        assert method.plan.numbers["filled_noise"] > MOST_NOISE
        assert len(run(method, half_silent(200, 0)).rounds) == method.plan.rounds


@pytest.mark.parametrize("told", [-20.0, -0.7, -0.5, -0.41, -0.39, 0.0, 0.5])
@pytest.mark.parametrize("deviation", [0.0, MOST_NOISE, 1.01 * MOST_NOISE, 3.0])
def test_it_stops_where_the_released_share_is_below_a_tenth_and_noise_lets_it_be_told(told, deviation):
    fixed = Watched(answer=np.array([told, 0.0]), deviation=deviation)
    if told + 0.5 < FEWEST and deviation <= MOST_NOISE:
        with pytest.raises(RunFailed, match=SENTENCE):
            Filled().take(None, np.zeros(2), fixed)
    else:
        progress, error = SimpleNamespace(heard=1.0, vague=0.0), math.sqrt(2) * deviation
        facts = Filled().take(progress, np.zeros(2), fixed)
        assert facts == {"filled_share": max(told + 0.5, 0.0), "noise_deviation": deviation}
        if told + 0.5 + 2 * error >= 1:  # everybody may be heard, for all that noise allows to tell
            assert (progress.heard, progress.vague) == (1.0, 0.0)
        else:
            assert progress.heard == min(max(told + 0.5, 2 * error), 1.0)
            assert progress.vague == error / progress.heard
    assert bool(doubts(deviation)) == (deviation > MOST_NOISE)


# --- Who is heard ----------------------------------------------------------------------------------------------------

LOSSES = {
    "squared": Squared(3, 3.0, 9.0, low=0.0, high=8.0, intercept=True),
    "logistic": Logistic(3, 3.0, 9.0, intercept=True),
    "poisson": Poisson(3, 3.0, 9.0, count_bound=8.0, intercept=True),
    "softmax": Softmax(3, 3, 3.0, 9.0, intercept=True),
    "quadratic": Quadratic(3, 5.0, 3.0),
}


def ordinary(name, users, seed=3):
    """Rows (users, 3) of columns of unequal size, and targets that depend on them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(users, 3)) * [1.0, 0.1, 0.5]
    scores, noise = rows @ [1.0, 5.0, -1.0] + 0.5, rng.normal(size=users)
    return rows, {
        "squared": np.clip(3 + scores + 0.3 * noise, 0, 8),
        "logistic": (noise < scores) * 1.0,
        "poisson": np.clip(rng.poisson(np.exp(np.clip(0.3 * scores, -2, 2))), 0, 8) * 1.0,
        "softmax": np.digitize(scores + noise, [-0.5, 1.0]) * 1.0,
        "quadratic": None,
    }[name]


def model_of(name, rows, targets, epsilon, **more):
    method = make(Auto, LOSSES[name], len(rows), epsilon, 1e-9, **more)
    return final(run(method, federation_of(rows, targets=targets))), method.memory


@pytest.mark.parametrize("name", LOSSES)
def test_where_noise_is_faint_the_model_is_that_of_the_people_who_are_heard(name):
    """Two thirds are silent; with noise, the sums of both runs have the same, and so have the means of those heard."""
    rows, targets = ordinary(name, 900)
    gaps, heard = rows.copy(), np.arange(900) % 3 == 2
    gaps[~heard, 0] = np.nan
    model, memory = model_of(name, gaps, targets, 1e5)
    alone, other = model_of(name, rows[heard], None if targets is None else targets[heard], 1e5)
    assert memory.heard == pytest.approx(1 / 3, abs=1e-3)
    assert (other.heard, other.vague) == (1.0, 0.0)
    np.testing.assert_allclose(model, alone, atol=1e-3)
    assert memory.length == pytest.approx(other.length, rel=1e-3)


def test_what_a_release_divides_by_is_the_share_of_those_who_are_heard_up_to_its_noise():
    """One in 500 estimates is farther than 3.1 deviations from the truth; 200 seeds have more than 4 once in 10,000."""
    problem, far, full = LOSSES["squared"], 0, 0
    for seed in range(200):
        for silent in (240, 0):
            method = make(Auto, problem, 400, 4.0, seed=seed)
            sums = np.array([400 / 2 - silent, 0.0])
            method.scheme.take(0, problem.initial(), Gathered(sums, 0, 0), method.memory, partial(method._noise, 0))
            deviation = math.sqrt(2) * method.plan.numbers["filled_noise"]
            far += silent > 0 and abs(method.memory.heard - 0.4) > 3.1 * deviation
            full += silent == 0 and method.memory.heard == 1.0
    assert far <= 4
    assert full >= 184  # two deviations: 195.4 are expected, with a standard deviation of 2.1


@settings(max_examples=50)
@given(arrays(np.float64, (6, 3), elements=st.floats(-9, 9)), st.integers(0, 20), st.floats(0.1, 9.0))
def test_without_noise_a_release_is_the_mean_of_those_who_are_heard(rows, silent, clip):
    """So is every statistic beside it; whoever is silent sends a row of zeros."""
    scheme, told = (
        make(Auto, LOSSES["squared"], 6 + silent, delta=1e-3).scheme,
        np.vstack([rows, np.zeros((silent, 3))]),
    )
    release = Release(scheme, 0, lambda _: None, Computation("user_gradient", "sum", clip), heard=6 / len(told))
    with (
        mock.patch.object(GaussianMechanism, "release", lambda self, value, noise: value),
        mock.patch("strategies.auto.releases.check_covered"),
    ):
        mean, deviation = release.mean(told.sum(axis=0), Movement.of_ball(clip))
        assert mean == pytest.approx(rows.mean(axis=0), abs=1e-9)
        assert deviation == pytest.approx(
            scheme.mechanism(0, Movement.of_ball(clip)).standard_deviation * len(told) / 6
        )
        for name, measured in STATISTICS.items():
            numbers = measured.compute(told, clip)
            if name == "unclipped":
                interval = Movement.of_interval(measured.low, measured.high)
                found = release.fraction(numbers.sum(keepdims=True), interval, silent=0.5)[0] - 0.5
            else:
                found, _ = release.logarithm(numbers.sum(keepdims=True), measured)
            assert found == pytest.approx(numbers[:6].mean(), abs=1e-9)
        assert release.users == pytest.approx(6)


def test_steps_after_a_preparation_are_longer_where_some_are_silent():
    part = LearnCoordinates(LOSSES["squared"], PublicFacts(400), Privacy(4.0, 1e-6), 0)
    part.ledger = SimpleNamespace(rounds=part.rounds)  # after the last
    _, everybody = part.found()
    part.memory.heard = 0.25
    assert part.found()[1].rate == 4 * everybody.rate
    assert part.found()[1].own_rate == everybody.own_rate


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
    again = method()
    result = run(again, half_silent(USERS, 0), resumed=Resumed(keeper.kept[0], keeper.asked[1]))
    memory = again.program.before.memory if place else again.memory
    assert (memory.heard, memory.vague) == (1.0, 0.0)
    assert result.rounds[0].facts["filled_share"] == pytest.approx(0.5, abs=0.3)
    assert len(result.rounds) == method().plan.rounds

"""``survival``: a person's rows become periods at risk, as many for everybody, by that person's rows alone."""

import numpy as np
import pandas as pd
import pytest

from userdp.data import read_table
from userdp.data.shape import Shape
from userdp.data.tables.sources import TableData
from userdp.errors import BadInput
from userdp.problems import Cloglog, Logistic, Poisson
from userdp.problems.registry import PROBLEMS

EDGES = [0.0, 1.0, 2.0, 3.0]
OPTIONS = {"user": "who", "features": ["age"], "ranges": {"age": [0, 100]}}


def loaded(rows, start=False, **more):
    names = ["who", *(["begin"] if start else []), "end", "died", "age"]
    form = {"time": "end", "event": "died", "periods": EDGES} | ({"start": "begin"} if start else {})
    return read_table(pd.DataFrame(rows, columns=names), survival=form | more.pop("form", {}), **OPTIONS, **more)


def periods(table, label):
    """(K,) -1 for a period that is not at risk, else the target; and the ages of those at risk."""
    block = table.federation.block(np.array([list(table.labels).index(label)]))
    at_risk = block.features[:, -1] == 1
    assert (block.features[~at_risk] == 0).all()
    assert (block.features[at_risk][:, 1:-1] == np.eye(3)[np.flatnonzero(at_risk)]).all()
    return np.where(at_risk, block.targets, -1).tolist(), (50 + 50 * block.features[at_risk, 0]).round(3).tolist()


def test_a_person_is_at_risk_until_the_event_or_the_last_time():
    table = loaded(
        [("early", 0.5, 1, 30), ("edge", 2.0, 1, 40), ("left", 1.5, 0, 50), ("stays", 9.0, 1, 60), ("zero", 0.0, 0, 70)]
    )
    assert periods(table, "early") == ([1, -1, -1], [30])
    assert periods(table, "edge") == ([0, 1, -1], [40, 40])
    assert periods(table, "left") == ([0, 0, -1], [50, 50])
    assert periods(table, "stays") == ([0, 0, 0], [60, 60, 60])
    assert periods(table, "zero") == ([0, -1, -1], [70])
    assert table.federation.sizes.tolist() == [3] * 5


def test_of_several_rows_the_features_at_a_period_start_count():
    table = loaded([("a", 2.5, 0, 40), ("a", 1.5, 0, 30), ("a", 2.7, 1, 50), ("a", 2.9, 0, 60)])
    assert periods(table, "a") == ([0, 0, 1], [30, 30, 40])
    late = loaded(
        [("a", 0.5, 1.5, 0, 30), ("a", 1.9, 3.0, 1, 40), ("b", 0.0, 0.9, 0, 20), ("b", 2.0, 2.5, 0, 25)], True
    )
    assert periods(late, "a") == ([-1, 0, 1], [30, 40])
    assert periods(late, "b") == ([0, -1, 0], [20, 25])


def test_a_row_that_ends_at_the_first_edge_hides_no_later_one_and_who_leaves_before_is_not_at_risk():
    followed = loaded([("a", 0.0, 0, 30), ("a", 2.5, 1, 40), ("b", 0.0, 1, 20)])
    assert periods(followed, "a") == ([0, 0, 1], [40, 40, 40])
    assert periods(followed, "b") == ([1, -1, -1], [20])
    late = {"form": {"periods": [1.0, 2.0, 3.0, 4.0]}}
    table = loaded([("a", 0.5, 0, 30), ("a", 2.5, 1, 40), ("left", 0.5, 1, 20), ("stays", 9.0, 0, 50)], **late)
    assert periods(table, "a") == ([0, 1, -1], [40, 40])
    assert periods(table, "stays") == ([0, 0, 0], [50, 50, 50])
    assert np.isnan(table.federation.block(np.array([list(table.labels).index("left")])).features).all()


def test_an_event_ends_a_person_and_unusable_rows_count_for_nothing():
    table = loaded(
        [("a", 0.5, 1, 30), ("a", 2.5, 0, 40), ("b", np.nan, 1, 30), ("b", 2.0, 0, np.nan), ("c", 1.0, 1, 1)]
    )
    assert periods(table, "a") == ([1, -1, -1], [30])
    block = table.federation.block(np.array([1]))
    assert np.isnan(block.features).all()
    assert not Cloglog(5, np.inf, 5.0).by_period(1, 4).bound(block)[0].usable.any()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_persons_rows_are_everybody_else_stays_the_same(seed):
    rng = np.random.default_rng(seed)

    def rows(who, count):
        begin = rng.uniform(-1, 3, count)
        ends = [*rng.uniform(0, 4, count - 1), rng.choice([np.nan, np.inf, -1.0, 2.0])]
        return [(who, b, e, int(d), a) for b, e, d, a in zip(begin, ends, rng.integers(0, 2, count), ends, strict=True)]

    others = [row for who in "abc" for row in rows(who, 3)]
    one, two = loaded([*others, *rows("x", 1)], True), loaded([*rows("x", 4), *others], True)
    for who in "abc":
        blocks = [each.federation.block(np.array([list(each.labels).index(who)])) for each in (one, two)]
        assert blocks[0].features.tobytes() == blocks[1].features.tobytes()
        assert blocks[0].targets.tobytes() == blocks[1].targets.tobytes()


def test_own_averages_would_be_biased_and_sums_over_the_public_number_are_not():
    """The mean of own averages, with two periods of hazard h, is ``h (3 - h) / 2``; five standard errors."""
    rng, hazard, people = np.random.default_rng(3), 0.2, 40_000
    ends = np.minimum(rng.geometric(hazard, people), 3)
    frame = pd.DataFrame({"who": np.arange(people), "end": np.minimum(ends, 2) - 0.5, "died": ends <= 2, "age": 1})
    form = {"time": "end", "event": "died", "periods": [0, 1, 2], "happened": "True"}
    table = read_table(frame, survival=form, **OPTIONS)
    block = table.federation.block(np.arange(people))
    at_risk, happened = block.features[:, -1].reshape(-1, 2), block.targets.reshape(-1, 2)
    own = happened.sum(axis=1) / at_risk.sum(axis=1)
    error = own.std() / np.sqrt(people)
    assert own.mean() == pytest.approx(hazard * (3 - hazard) / 2, abs=5 * error)
    assert own.mean() - hazard > 20 * error
    for kind in (Cloglog, Logistic):
        problem = kind(4, np.inf, 5.0).by_period(1, 3)
        truth = problem.constant_model(np.array([hazard, 1.0]))
        slopes = problem.user_gradients(truth, block)
        assert (np.abs(slopes.mean(axis=0)) < 5 * slopes.std(axis=0) / np.sqrt(people) + 1e-9).all()
        means = problem.target_means(block).mean(axis=0)
        assert means[0] / means[1] == pytest.approx(hazard, abs=5 * error)


def test_what_is_not_at_risk_adds_nothing_to_losses_metrics_and_predictions():
    table = loaded([("a", 0.5, 1, 30), ("b", 2.5, 0, 40)])
    problem = Cloglog(5, np.inf, 5.0).by_period(1, 4)
    order = np.argsort(table.labels)
    block, x = problem.bound(table.federation.block(order))[0], np.array([0.3, -1.0, -2.0, -1.5, -0.5])
    measured = problem.metrics(x, block)
    assert sorted(measured) == ["log_loss", "test_loss"]
    hazards = problem.predict(x, block)["probability"]
    assert len(hazards) == 4
    assert problem.observed_sizes(block).tolist() == [1, 3]
    logs = np.log(np.where(problem.observed(block) > 0, hazards, 1 - hazards))
    np.testing.assert_allclose(measured["test_loss"], -np.array([logs[0], logs[1:].sum()]) / 3)
    constant = problem.constant_metrics(np.array([0.2, 0.8]), block)["test_loss"]
    np.testing.assert_allclose(constant, -np.array([np.log(0.25), 3 * np.log(0.75)]) / 3)
    whole = np.zeros((1, 5), np.float32)
    whole[0, [0, 4]] = 0.5, 1.0
    scores = 0.15 - 0.5 + x[1:4]
    told = problem.predict(x, type(block)(whole, np.array([0, 1]), np.zeros(1, np.float32)))["probability"]
    assert told[0] == pytest.approx(1 - np.exp(-np.exp(scores).sum()))


@pytest.mark.parametrize(("died", "kind"), [("yes", "nobody has the event"), (np.nan, "no cell with a value")])
def test_events_that_are_in_no_cell_are_told_to_whoever_holds_the_data(died, kind):
    """Such as yes, where 1 means that the event happened."""
    told = loaded([("a", 0.5, died, 30), ("b", 2.5, died, 40)]).report.nothing_usable
    assert any(kind in sentence and "'died'" in sentence for sentence in told)
    assert not loaded([("a", 0.5, 1, 30), ("b", 2.5, 0, 40)]).report.nothing_usable


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"form": {"periods": [0, 2, 1]}}, "must be the rising edges"),
        ({"form": {"event": "end"}}, "names a column twice"),
        ({"target": "died"}, "survival makes the target"),
        ({"max_samples": 2}, "the same number of samples"),
        ({"form": {"time": "age"}}, "would reveal a person's end"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(more, told):
    with pytest.raises(BadInput, match=told):
        loaded([("a", 0.5, 1, 30)], **more)


@pytest.mark.parametrize("limit", [{"max_samples": 2}, {"min_samples": 2}])
def test_limits_on_samples_are_refused_before_the_table_is_read(limit):
    form = {"time": "end", "event": "died", "periods": EDGES}
    source = TableData(kind="table", path="absent.csv", survival=form, users=10, **OPTIONS, **limit)
    with pytest.raises(BadInput, match=r"\[data\] survival gives everybody the same number of samples"):
        _ = source.sample_shape


@pytest.mark.parametrize("bound", ["feature_norm", "feature_bound"])
def test_a_bound_that_would_shrink_the_columns_of_periods_is_refused(bound):
    shape = Shape(5, has_target=True, bound=1.0, feature_norm=3.0, target_range=(0.0, 1.0), periods=(1, 4))
    kind = PROBLEMS["cloglog"]
    assert kind.model_validate({"kind": "cloglog", bound: np.inf}).build(shape, 0).hazards == 3
    with pytest.raises(BadInput, match=f"problem.{bound} = 2: it would shrink the columns of data.survival's periods"):
        kind.model_validate({"kind": "cloglog", bound: 2.0}).build(shape, 0)


def test_a_ridge_is_refused():
    with pytest.raises(BadInput, match="a level for each period, which a ridge would move"):
        Cloglog(5, np.inf, 5.0, ridge=0.1).by_period(1, 4)


def test_where_nobody_or_everybody_has_the_event_the_best_constant_lies_at_the_end_of_the_domain():
    """Held-out people may be so, and a run that measures its model there goes on."""
    problem = Cloglog(5, np.inf, 5.0).by_period(1, 4)
    assert [problem.constant_model(np.array([mean, 0.5]))[-1] for mean in (0.0, 0.5)] == [-5.0, 5.0]
    assert Poisson(3, np.inf, 5.0, count_bound=9.0, intercept=True).constant_model(np.zeros(1))[-1] == -5.0

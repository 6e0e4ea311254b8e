"""Exposures and offsets declared of a table: rates, rows set aside, predictions, and coefficients."""

import math

import numpy as np
import pandas as pd
import pytest
from helpers import make, run
from helpers_silos import rehearsed

from simulations import train
from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.silos import silo_node, split
from strategies import Auto
from userdp.data import Block, ColumnarFederation
from userdp.data.tables.tabular import read_table
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import Poisson

TRUTH = {"dose": 0.4, "sex=m": -0.5, "intercept": -1.0}
FORM = {"user": "patient", "features": ["dose"], "categorical": {"sex": ["f", "m"]}, "target": "falls"}
SILOS = {"a": np.arange(3), "b": np.arange(3, 6)}
RANGES = {"dose": [0, 2], "years": [0.25, 8]}


def cohort(people=3000, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(people), rng.integers(1, 4, people))
    table = pd.DataFrame({"patient": rows, "dose": rng.uniform(0, 2, len(rows))})
    table["sex"] = rng.choice(["f", "m"], people)[rows]
    table["years"] = np.exp(rng.uniform(math.log(0.25), math.log(8), len(rows)))
    rate = np.exp(TRUTH["intercept"] + TRUTH["dose"] * table.dose + TRUTH["sex=m"] * (table.sex == "m"))
    table["falls"] = rng.poisson(rate * table.years)
    return table


def fitted(table, problem="poisson", **declared):
    problem = {"kind": problem, "count_bound": 60.0, "radius": 8.0} if problem == "poisson" else problem
    guarantee = {"epsilon": 200.0, "delta": 1e-6, "test_fraction": 0.0}
    return train(table, **{**FORM, "ranges": RANGES, **declared}, problem=problem, **guarantee, seed=1)


def test_rates_are_per_unit_of_exposure_and_predictions_grow_with_it():
    table = cohort()
    model = fitted(table, exposure="years", strategy={"kind": "auto", "coefficients": 0.5})
    found = model.coefficients()
    for name, value in TRUTH.items():
        row = found.loc[name]
        assert abs(row.estimate - value) < 4 * row.standard_error
        assert row.standard_error < 0.1
    row = table.iloc[:1]
    one, two, beyond = (float(model.predict(row.assign(years=years)).prediction.iloc[0]) for years in (1, 2, 16))
    assert two == pytest.approx(2 * one, rel=1e-5)
    assert beyond == pytest.approx(8 * one, rel=1e-5)  # the declared range
    assert math.isnan(float(model.predict(row.assign(years=np.nan)).prediction.iloc[0]))
    assert model.evaluate(table).loc["deviance", "this model"] < model.evaluate(table).loc["deviance", "best constant"]
    with pytest.raises(BadInput, match="the graph has no known term of scores, as column 'years'"):
        model.to_onnx("rates.onnx")


@pytest.mark.slow
def test_intervals_of_rates_hold_the_truth_as_often_as_they_say():
    """400 cohorts of 1,000 people, at epsilon 4; each has three intervals."""
    middle = np.log(RANGES["years"]).mean()  # from which a loss counts known terms
    held, truth = [], np.array([2 * TRUTH["dose"], TRUTH["sex=m"], TRUTH["intercept"] + middle])
    problem = Poisson(2, math.inf, 8.0, count_bound=60.0, feature_bound=1.0, intercept=True)
    problem = problem.with_terms(*np.log(RANGES["years"]))
    for seed in range(400):
        table = cohort(1000, seed)
        offsets = np.append(0, np.cumsum(np.bincount(table.patient)))
        features, falls = np.column_stack([table.dose / 2, table.sex == "m"]), table.falls.to_numpy(np.float32)
        terms = np.log(table.years.to_numpy()).astype(np.float32)
        block = Block(features.astype(np.float32), offsets, falls, terms=terms)
        method = make(Auto, problem, 1000, 4.0, seed=seed, coefficients=0.5)
        run(method, ColumnarFederation(block))
        found = method.memory.inference
        held.append((np.abs(found.estimate - truth) <= 1.96 * found.error)[found.trusted > 0])
    assert sum(map(len, held)) > 1100
    assert 0.93 <= np.concatenate(held).mean() <= 0.98


def test_an_offset_is_in_the_units_of_a_scaled_target():
    table = cohort().drop(columns="years")
    rng = np.random.default_rng(5)
    table["before"] = rng.uniform(0, 20, len(table))
    table["falls"] = 10 + table.before + 3 * table.dose + rng.normal(0, 1, len(table))
    declared = {"ranges": {"dose": [0, 2], "before": [0, 20]}, "target_range": [0, 60], "offset": "before"}
    model = fitted(table, "squared", **declared, strategy={"kind": "auto", "coefficients": 0.5})
    found = model.coefficients()
    assert found.loc["dose", "estimate"] == pytest.approx(3, abs=5 * found.loc["dose", "standard_error"])
    assert found.loc["intercept", "estimate"] == pytest.approx(10, abs=0.5)
    near, far = (model.predict(table.iloc[:1].assign(before=value)).prediction.iloc[0] for value in (2.0, 12.0))
    assert far - near == pytest.approx(10, rel=1e-4)


def test_an_offset_far_from_the_middle_of_its_range_moves_no_intercept():
    """Most offsets are near the low end, so that a mean target would be far from the level at the middle."""
    table, rng = cohort().drop(columns="years"), np.random.default_rng(6)
    table["log_odds"] = rng.uniform(-2, -1.5, len(table)) + 4 * (rng.random(len(table)) < 0.02)
    score = table.log_odds + 1 + table.dose
    table["falls"] = (rng.random(len(table)) < 1 / (1 + np.exp(-score))).astype(float)
    declared = {"ranges": {"dose": [0, 2], "log_odds": [-2, 3]}, "offset": "log_odds"}
    model = fitted(table, "logistic", **declared, strategy={"kind": "auto", "coefficients": 0.5})
    found = model.coefficients()
    for name, value in {"dose": 1.0, "sex=m": 0.0, "intercept": 1.0}.items():
        assert abs(found.loc[name, "estimate"] - value) < 4 * found.loc[name, "standard_error"]


def test_a_missing_exposure_sets_its_row_aside_and_no_other():
    table = cohort(20).astype({"years": object})
    table.loc[3, "years"] = None
    table.loc[5, "years"] = "long"
    table.loc[6, "years"] = 100
    read = read_table(table, **FORM, ranges=RANGES, exposure="years")
    terms = read.federation.block(np.arange(20)).terms
    assert np.isnan(terms).sum() == 2
    assert np.nanmax(terms) == pytest.approx(math.log(8))
    assert read.report.unusable["years"] == 2
    assert read.report.clipped["years"] == 1
    assert read.feature_names == ["dose", "sex=f", "sex=m"]


def test_one_persons_cells_move_nobody_elses_terms():
    table, rng = cohort(12, 3), np.random.default_rng(0)
    before = read_table(table, **FORM, ranges=RANGES, exposure="years")
    for cell in (None, "x", 1e300, -1.0, 0.0):
        other = table.astype({"years": object})
        own = other.patient == int(rng.integers(12))
        other.loc[own, "years"] = cell
        after = read_table(other, **FORM, ranges=RANGES, exposure="years")
        person = str(other.patient[own].iloc[0])
        for place, label in enumerate(before.labels):
            same = np.array_equal(
                before.federation.block(np.array([place])).terms, after.federation.block(np.array([place])).terms
            )
            assert same or label == person


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"exposure": "months"}, r"ranges has no \[low, high\] for exposure = 'months'"),
        ({"exposure": "years", "ranges": {**RANGES, "years": [0, 8]}}, "an exposure is positive"),
        ({"exposure": "years", "offset": "years"}, "exposure and offset are both declared"),
        ({"exposure": "years", "features": ["dose", "years"]}, "column 'years' is declared twice"),
        (
            {"exposure": "falls", "ranges": {"dose": [0, 2], "falls": [1, 9]}},
            "'falls' is .* user, target, exposure, offset",
        ),
        ({}, "ranges names 'years', which is not in features"),
    ],
)
def test_what_is_refused(declared, sentence):
    with pytest.raises(BadInput, match=sentence):
        read_table(cohort(5), **{**FORM, "ranges": RANGES, **declared})


def test_codes_take_an_exposure_too():
    table = cohort(2000)
    ranges = {"years": [0.25, 8]}
    form = {"user": "patient", "codes": "sex", "levels": ["f", "m"], "target": "falls", "exposure": "years"}
    problem = {"kind": "one_hot_poisson", "count_bound": 60.0}
    given = {"epsilon": 100.0, "delta": 1e-6, "test_fraction": 0.0, "seed": 0}
    model = train(table, **form, ranges=ranges, problem=problem, **given)
    women, men = model.predict(table.assign(years=1.0)).prediction.groupby(table.sex).first()
    assert men / women == pytest.approx(math.exp(TRUTH["sex=m"]), rel=0.15)
    assert women == pytest.approx(math.exp(TRUTH["intercept"]) * (math.exp(0.8) - 1) / 0.8, rel=0.15)


def test_the_folder_of_a_silo_holds_its_exposures(tmp_path):
    table = cohort(6)
    table.loc[3, "years"] = np.nan
    table.to_csv(tmp_path / "table.csv", index=False)
    data = {**FORM, "kind": "table", "path": str(tmp_path / "table.csv"), "ranges": RANGES, "exposure": "years"}
    data |= {"users": 6, "test_fraction": 0.0}
    problem, private = {"kind": "poisson", "count_bound": 60.0}, {"epsilon": 2.0, "delta": 1e-3}
    config = parse_config({"name": "silos", "data": data, "problem": problem, "privacy": private})
    split(config, [tmp_path / "a", tmp_path / "b"])
    rehearsed([tmp_path / "a", tmp_path / "b"])
    made = build_problem(config)
    x, asked = np.full(made.dimension, 0.1), Computation(reduce="rows", separate=True)
    rows = [silo_node(config, made, tmp_path / name).compute(x, users, asked).values for name, users in SILOS.items()]
    block = made.bound(load_datasets(config).users.block(np.arange(6)))[0]
    whole = Node(made, ColumnarFederation(block), np.arange(6)).compute(x, np.arange(6), asked).values
    np.testing.assert_array_equal(np.concatenate(rows), whole)

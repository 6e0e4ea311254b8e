"""Targets of declared classes from a table to a report: training, engines, names, who is taken for whom, an audit."""

import json

import numpy as np
import pandas as pd
import pytest
from examples import altered, call, changed
from scipy.optimize import minimize

from simulations import load_model
from simulations.audit.instance import Instance
from simulations.config.run_config import parse_config
from simulations.records.held_out import held_out
from simulations.records.quality import macro_f1
from simulations.reports.report import confusion_table, page
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.run import run
from userdp.data import Block
from userdp.problems import Softmax

LEVELS = ["low", "middle", "high", "other"]


def write_people(path, users=900, seed=0):
    """Two rows per person: the class follows two numbers of which one is tiny."""
    rng = np.random.default_rng(seed)
    size, dose = rng.normal(0, 1, 2 * users), rng.normal(0, 0.01, 2 * users)
    scores = np.stack([1.5 - size, size + 60 * dose, 2 * size, np.full(2 * users, -1.5)], axis=1)
    classes = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    cells = [LEVELS[one] for one in classes]
    frame = pd.DataFrame({"who": np.repeat(np.arange(users), 2), "size": size, "dose": dose, "grade": cells})
    frame.to_csv(path, index=False)
    return path


def configuration(folder, problem=None, users=900, **more):
    data = {
        "kind": "table",
        "path": str(folder / "people.csv"),
        "user": "who",
        "features": ["size", "dose"],
        "ranges": {"size": [-4.0, 4.0], "dose": [-1.0, 1.0]},
        "target": "grade",
        "target_levels": LEVELS,
        "all_users": users,
    }
    settings = {"strategy": {"kind": "auto"}, "problem": problem or {"kind": "softmax", "radius": 50.0}} | more
    return parse_config(changed(data=data, **settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("classes")
    write_people(place / "people.csv")
    return place


@pytest.fixture(scope="module")
def outcome(folder):
    return run(configuration(folder), directory=folder / "run")


def held_out_loss(problem, x, people):
    return float(problem.metrics(x, problem.bound(people.block(np.arange(people.users)))[0])["log_loss"].mean())


def test_auto_goes_most_of_the_way_from_the_shares_to_the_optimum_without_privacy(folder, outcome):
    config = configuration(folder)
    problem, data = build_problem(config), load_datasets(config)
    block = problem.bound(data.train.block(np.arange(data.train.users)))[0]
    shares = np.bincount(block.targets.astype(int), minlength=4) / block.samples

    def loss(x):
        return problem.sample_losses(x, block).mean(), problem.user_gradients(x, block).mean(axis=0)

    best = minimize(loss, problem.initial(), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    constant, least = (held_out_loss(problem, x, data.test) for x in (problem.constant_model(shares), best))
    reached = outcome.result["metrics"]["log_loss"]
    assert constant - least > 0.15
    assert (constant - reached) / (constant - least) >= 0.9


def test_the_result_says_who_is_taken_for_whom_and_the_page_shows_it(folder, outcome):
    counts, metrics = np.array(outcome.result["confusion"]), outcome.result["metrics"]
    people = load_datasets(configuration(folder)).test
    assert counts.shape == (4, 4)
    assert counts.sum() == people.samples
    assert np.trace(counts) / counts.sum() == pytest.approx(metrics["accuracy"])
    assert metrics["macro_f1"] == pytest.approx(macro_f1(counts))
    told = page(folder / "run")
    assert "Confusion matrix" in told
    for level, row in zip(LEVELS, counts, strict=True):
        assert f"<th>{level}</th>" in told
        assert f">{row.max():,}</td>" in told
    assert "color-mix(in srgb" in told


def test_a_confusion_and_its_f1_by_hand():
    problem = Softmax(3, 3, np.inf, np.inf)
    rows = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 0]]  # of classes 0, 0, 0, 1, 1; class 2 is neither seen nor told
    block = Block(rows, np.array([0, 2, 5]), np.float32([0, 0, 0, 1, 1]))
    x = np.eye(3).ravel()
    parts = [block.part(0, 1), block.part(1, 2)]
    counts = held_out(problem, x, parts).counts
    assert counts.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert macro_f1(counts) == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert held_out(problem, x, []).counts is None
    first, _, last = confusion_table(counts.tolist(), {})
    assert first == ("0", [(2, 67), (1, 33), (0, 0)], 67)
    assert last[2] is None
    assert confusion_table(None, {}) == []


def test_predictions_have_the_names_of_the_classes(folder, outcome, tmp_path):
    told = load_model(folder / "run").predict(folder / "people.csv")
    assert list(told) == ["prediction", *(f"probability of {level}" for level in LEVELS)]
    np.testing.assert_allclose(told.iloc[:, 1:].sum(axis=1), 1.0)
    likeliest = told.iloc[:, 1:].to_numpy().argmax(axis=1)
    assert (told["prediction"] == np.array(LEVELS)[likeliest]).all()
    assert told["prediction"].nunique() >= 3
    frame = pd.DataFrame({"size": ["1.0", "x"], "dose": [0.0, 0.0]})
    missing = load_model(folder / "run").predict(frame)
    assert missing["prediction"].isna().tolist() == [False, True]
    done = call("predict", folder / "run", folder / "people.csv", "--output", tmp_path / "p.parquet")
    assert done.exit_code == 0
    assert set(pd.read_parquet(tmp_path / "p.parquet")["prediction"]) <= set(LEVELS)


@pytest.mark.parametrize(
    ("problem", "levels", "told"),
    [
        ({"kind": "softmax"}, [0, 1, 2], [0.0, 1.0, 2.0]),
        ({"kind": "logistic"}, [1, 0], [0.0, 1.0]),
        ({"kind": "torch", "loss": "cross_entropy", "precision": "double"}, ["0", "1", "2"], ["0", "1", "2"]),
    ],
)
def test_numbers_stay_numbers_and_other_losses_have_names_too(tmp_path, problem, levels, told):
    frame = pd.read_csv(write_people(tmp_path / "people.csv", users=60))
    frame["grade"] = frame["grade"].map({"low": 0, "middle": 1, "high": 2, "other": 3})
    frame.to_csv(tmp_path / "people.csv", index=False)
    strategy = {"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0}
    config = altered(configuration(tmp_path, problem, 60, strategy=strategy), data__target_levels=levels)
    done = run(config, directory=tmp_path / "run", report=False)
    found = load_model(tmp_path / "run").predict(tmp_path / "people.csv")
    assert list(found)[1:] == [f"probability of {level}" for level in levels]
    assert set(found["prediction"]) <= set(told)
    assert ("confusion" in done.result) == (len(levels) > 2)


def test_there_are_small_instances_of_it_to_attack(folder):
    for strategy in ({"kind": "auto"}, {"kind": "dp_fed_sgd", "rounds": 3}):
        found = Instance.all_of(configuration(folder, strategy=strategy))
        assert found[0].plan.guarantee.epsilon <= 4.0


@pytest.mark.slow
def test_an_audit_of_a_run_with_classes_refutes_nothing(folder, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(configuration(folder).toml())
    done = call("audit", path, "--runs", 400, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)

"""The examples of docs/extend.md: each is one file, which is checked, planned, run on engines and resumed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from examples import changed
from helpers import PATIENCE, forgive_ray
from helpers_flower import RUN, run_on_flower

from simulations.config.run_config import load_config
from simulations.records.named_code import code_in
from simulations.records.observer import Observer
from simulations.runs.build import make_plan
from simulations.runs.run import run
from userdp.data import POPULATIONS, SyntheticFederation
from userdp.data.synthetic.source import synthetic_settings
from userdp.errors import BadInput, ContractBroken
from userdp.kinds import Kinds
from userdp.testing import check_loss, check_sampler, check_source, check_statistic

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))
NIGHTS = 5
pytestmark = forgive_ray


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of the page, and the data that one of them reads."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "people").mkdir()
    rng = np.random.default_rng(3)
    for person in range(200):
        hours = rng.uniform(3, 10, 1 + person % NIGHTS)
        nights = [[one, float(np.tanh((one - 6) / 4))] for one in hours]
        (tmp_path / "people" / f"{person:03}.json").write_text(json.dumps(nights), encoding="utf-8")
    return tmp_path


def class_of(folder, place):
    return Kinds({}, files=True)[f"{folder}/{place}"]


def config_of(folder, **sections):
    """A run that uses a source, a loss and a sampler of the page."""
    raw = changed(
        problem={"kind": "log_cosh.py:LogCoshSettings"},
        data={"kind": "diaries.py:Diaries", "path": "people", "users": 200, "most": NIGHTS},
        strategy={"kind": "dp_fed_sgd", "sampling": "shift_cohorts.py:Shifts", "cohort": 50, "rounds": 6},
    )
    (folder / "run.toml").write_text(tomli_w.dumps(raw | sections), encoding="utf-8")
    return load_config(folder / "run.toml")


@pytest.mark.slow
def test_each_example_keeps_to_its_contract(folder):
    check_sampler(class_of(folder, "shift_cohorts.py:Shifts"))
    check_loss(class_of(folder, "log_cosh.py:LogCoshSettings"), kind="log_cosh")
    check_statistic(class_of(folder, "shares_above.py:ShareAbove"), of="number", threshold=30)
    check_source(class_of(folder, "diaries.py:Diaries"), path=str(folder / "people"), users=200, most=NIGHTS)


def test_a_population_of_a_package_is_drawn_from_and_its_mean_found(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(POPULATIONS.installed, *re.search(r'`(even) = "(even:Even)"`', PAGE).groups())
    made_up = {"users": 3000, "dimension": 2, "width": 1.0, "mean": [0.5, -0.25], "heterogeneity": 0.1}
    check_source(
        synthetic_settings("even"), kind="synthetic", population="even", samples_per_user=2, **(made_up | {"users": 40})
    )
    block = SyntheticFederation(POPULATIONS["even"](dimension=2, width=1.0, mean=0.0), 2000, 5).block(np.arange(2000))
    assert np.abs(block.features).max() <= 0.5
    # Of 20,000 uniform numbers of deviation 0.289: five standard errors of their mean, and of their deviation.
    np.testing.assert_allclose(block.features.mean(axis=0), 0.0, atol=0.011)
    np.testing.assert_allclose(block.features.std(axis=0), 12**-0.5, atol=0.007)
    raw = changed(
        problem={"kind": "quadratic", "bound": 2.0, "radius": 1.0},
        data={"kind": "synthetic", "population": "even", "test_users": 100, **made_up},
        strategy={"kind": "auto"},
        privacy={"epsilon": 20.0, "delta": 1e-5},
    )
    (folder / "even.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    done = run(load_config(folder / "even.toml"), directory=folder / "even", report=False)
    np.testing.assert_allclose(done.model, [0.5, -0.25], atol=0.05)


def test_the_page_shows_each_call_of_a_check_as_it_is():
    for call in ("check_sampler(Shifts)", "check_loss(LogCoshSettings)", "check_statistic(ShareAbove, of="):
        assert f"`{call}" in PAGE


@pytest.mark.slow
def test_they_are_planned_and_run_together_and_go_on_after_a_stop(folder):
    config = config_of(folder)
    assert {"problem.kind", "data.kind", "strategy.sampling"} == code_in(config).keys()
    assert make_plan(config).numbers["sampling"].endswith(":Shifts")
    whole = run(config, directory=folder / "whole", report=False)

    class Stop(Observer):
        def on_round(self, record):
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, directory=folder / "stopped", observers=[Stop()], checkpoint=True, report=False)
    again = run(config, directory=folder / "stopped", resume=True, report=False)
    np.testing.assert_array_equal(again.model, whole.model)


@pytest.mark.long
@pytest.mark.slow
def test_ray_finds_their_classes_by_name_and_gives_the_same_model(folder):
    local = run(config_of(folder), directory=folder / "local", report=False)
    ray = run(config_of(folder, engine={"kind": "ray", "workers": 2}), directory=folder / "ray", report=False)
    np.testing.assert_array_equal(ray.model, local.model)


@pytest.mark.long
@pytest.mark.slow
def test_flowers_engine_gives_the_same_model(folder):
    local = run(config_of(folder), directory=folder / "local", report=False)
    asked = {"config": str(folder / "run.toml"), "roster_timeout": PATIENCE, "output": str(folder / "flower")}
    run_on_flower(folder / "home", RUN, 4, asked)
    np.testing.assert_allclose(np.load(folder / "flower" / "model.npz")["x"], local.model, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_query_asks_the_statistic_and_names_it_by_its_class(folder):
    rows = [f"{user},{20 + user % 60}" for user in range(500)]
    (folder / "people.csv").write_text("\n".join(["who,age", *rows]), encoding="utf-8")
    (folder / "query.toml").write_text(
        tomli_w.dumps(
            {
                "ask": [{"statistic": "shares_above.py:ShareAbove", "of": "age", "threshold": 40}],
                "data": {
                    "kind": "table",
                    "path": "people.csv",
                    "user": "who",
                    "features": ["age"],
                    "ranges": {"age": [0, 100]},
                },
                "privacy": {"epsilon": 8.0, "delta": 1e-4},
            }
        ),
        encoding="utf-8",
    )
    config = load_config(folder / "query.toml")
    assert list(code_in(config)) == ["ask.1"]
    result = run(config, directory=folder / "query", report=False)
    (answer,) = json.loads((folder / "query" / "result.json").read_text(encoding="utf-8"))["answers"]
    assert result.guarantee.holds
    assert answer["statistic"] == "ShareAbove"
    assert answer["low"] <= np.mean([20 + user % 60 > 40 for user in range(500)]) <= answer["high"]


def test_a_sampler_below_its_price_stops_the_plan(folder):
    text = FILES["shift_cohorts.py"].replace("passes, delta)", "min(passes, 1), delta)")
    (folder / "shift_cohorts.py").write_text(text, encoding="utf-8")
    with pytest.raises(ContractBroken, match="Shifts "):
        make_plan(config_of(folder))


@pytest.mark.parametrize("key", ["problem.kind", "data.kind", "strategy.sampling"])
def test_a_misspelt_class_is_one_sentence(folder, key):
    section, _, name = key.partition(".")
    config = tomli_w.dumps(changed())
    (folder / "run.toml").write_text(config, encoding="utf-8")
    with pytest.raises(BadInput, match="has no attribute 'Missing'"):
        make_plan(load_config(folder / "run.toml", [f"{section}.{name}={folder}/shift_cohorts.py:Missing"]))

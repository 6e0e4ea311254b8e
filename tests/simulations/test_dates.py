"""A date that carries the signal, from the configuration to predictions on other people."""

import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import altered, changed

from simulations import load_config, load_model, train
from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem, load_datasets, make_plan
from simulations.runs.run import run
from simulations.runs.silos import prepare
from userdp.errors import BadInput

BOUNDS = (date(1940, 1, 1), pd.Timestamp("2010-01-01"))
DECLARED = {
    "user": "who",
    "dates": {"born": BOUNDS},
    "date_parts": {"visited": ["weekday"]},
    "date_formats": {"visited": "%d.%m.%Y"},
    "impute": {"born": np.datetime64("1975-01-01", "ns")},
    "missing_indicators": ["born"],
    "target": "ill",
    "positive": 1,
}
ASKED = {"problem": "logistic", "epsilon": 20.0, "delta": 1e-3, "strategy": {"kind": "dp_fed_sgd", "rounds": 20}}
ASKED |= {"output": {"reference": False}, "seed": 3, "users": 480, "test_fraction": 0.2}


def people(seed=0, users=600):
    """A table in which the people born before 1975 are ill, and nobody else."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 70 * 365, users)
    born = pd.Timestamp("1940-01-01") + pd.to_timedelta(days, unit="D")
    visited = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 365, users), unit="D")
    ill = (born < "1975-01-01").astype(int)
    columns = {"who": [f"u{user}" for user in range(users)], "born": born, "visited": visited.strftime("%d.%m.%Y")}
    return pd.DataFrame(columns | {"ill": ill})


@pytest.fixture(scope="module")
def trained():
    return train(people(), progress=False, **DECLARED, **ASKED)


def test_a_date_that_carries_the_signal_is_learnt(trained, tmp_path):
    assert trained.result["metrics"]["accuracy"] > 0.9
    saved = load_model(trained.save(tmp_path / "saved"))
    others = people(seed=1, users=200)
    wanted = others.pop("ill")
    found = saved.predict(others)
    assert ((found["probability"] > 0.5) == (wanted == 1)).mean() > 0.9
    # The same people, written in other ways.
    for born in (others["born"].dt.strftime("%Y%m%d"), others["born"].dt.tz_localize("UTC"), others["born"].dt.date):
        pd.testing.assert_frame_equal(saved.predict(others.assign(born=born)), found)
    others.to_csv(tmp_path / "others.csv", index=False)
    pd.testing.assert_frame_equal(saved.predict(tmp_path / "others.csv"), found)
    alone = saved.predict(others.iloc[[7]])
    assert alone["probability"].item() == found["probability"][7]


def test_one_strange_cell_changes_no_other_prediction_and_nothing_fails(trained):
    others = people(seed=1, users=20).drop(columns="ill").astype(object)
    before = trained.predict(others)["probability"]
    for cell in ("03/04/1970", "soon", None, 1e300, pd.Timestamp("2262-04-11"), date(9999, 12, 31), b"\xff"):
        others.loc[0, "born"] = cell
        after = trained.predict(others)["probability"]
        assert after.notna().all()  # what is missing is imputed
        np.testing.assert_array_equal(before[1:], after[1:])


def section(path, **settings):
    data = {"kind": "table", "path": str(path)} | DECLARED | {"users": 480, "test_fraction": 0.2} | settings
    data |= {"dates": data["dates"], "impute": {"born": "1975-01-01"}}
    return {key: value for key, value in data.items() if value is not None}


GIVEN = {"problem": {"kind": "logistic"}, "privacy": {"epsilon": 20.0, "delta": 1e-3}, "output": {"reference": False}}
GIVEN |= {"strategy": ASKED["strategy"]}


def configuration(path, **settings):
    return parse_config(changed(data=section(path, **settings), **GIVEN))


def test_a_file_with_dates_of_its_own_is_the_same_run_and_a_public_model_goes_on(trained, tmp_path):
    people().to_csv(tmp_path / "people.csv", index=False)
    own = {
        "dates": {"born": [date(1940, 1, 1), datetime(2010, 1, 1, tzinfo=UTC)]},
        "impute": {"born": date(1975, 1, 1)},
    }
    (tmp_path / "run.toml").write_text(tomli_w.dumps(changed(data=section("people.csv") | own, **GIVEN)))
    assert "born = 1975-01-01" in (tmp_path / "run.toml").read_text()
    config = load_config(tmp_path / "run.toml")
    assert parse_config(tomllib.loads(config.toml())).data == config.data
    outcome = run(config, directory=tmp_path / "run", report=False)
    np.testing.assert_array_equal(outcome.model, trained.model)
    warm = altered(config, problem__initial_model=str(tmp_path / "run" / "model.npz"))
    assert run(warm, directory=tmp_path / "warm", report=False).result["metrics"]["accuracy"] > 0.9


def test_a_plan_needs_no_data_and_counts_the_features(tmp_path):
    config = configuration(tmp_path / "nowhere.csv")
    assert build_problem(config).dimension == 1 + 1 + 7 + 1  # born, whether it is missing, weekdays, intercept
    assert make_plan(config).users == 480
    page = (Path(__file__).parents[2] / "docs" / "bring-a-table.md").read_text(encoding="utf-8")
    example = tomllib.loads(page.partition("## Dates and times\n\n```toml\n")[2].partition("```")[0])
    assert build_problem(parse_config(changed(problem={"kind": "quadratic"}, **example))).dimension == 2 + 1 + 12 + 7


def test_a_silo_and_a_simulation_say_what_cannot_be_read(tmp_path, caplog):
    path = tmp_path / "people.csv"
    people().assign(born="03/04/1970").to_csv(path, index=False)
    with pytest.raises(BadInput, match=r"the feature 'born' is declared as a date.*date_formats = \{ born = .*Private"):
        load_datasets(configuration(path))
    secure = altered(configuration(path, users=480, test_fraction=0.0), privacy__noise="secure")
    prepare(secure, tmp_path / "silo", 0)
    assert any("'born' is declared as a date" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"dates": {"born": 5}}, r"\[data\] dates.born = 5: must be \[first, last\], two public dates, such as"),
        ({"dates": {"born": ["1980"]}}, r"\[data\] dates.born = \['1980'\]: must be \[first, last\]"),
        ({"dates": ["born"]}, r"data.dates = \['born'\]: must be a section, .* or a table of keys"),
        (
            {"date_parts": {"visited": "month"}},
            "date_parts.visited = 'month': must be a list of parts, at least one of month, quarter",
        ),
        ({"date_parts": {"visited": ["hours"]}}, "is no part of a date; did you mean 'hour'"),
        (
            {"dates": {"born": [date(2010, 1, 1), date(1940, 1, 1)]}},
            "= \\['2010-01-01', '1940-01-01'\\]: the first date",
        ),
        ({"date_formats": {"born": 5}}, "date_formats.born = 5: must be text, such as '%d.%m.%Y'"),
        ({"date_format": {"born": "%Y"}}, "unknown key data.date_format; did you mean data.date_formats?"),
        ({"target": "born", "target_range": [0.0, 1.0], "positive": None}, "dates names 'born', the target"),
    ],
)
def test_wrong_declarations_get_a_sentence(tmp_path, settings, told):
    with pytest.raises(BadInput, match=told) as refused:
        make_plan(configuration(tmp_path / "nowhere.csv", **settings))
    assert len(str(refused.value).splitlines()) == 1

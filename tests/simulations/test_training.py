"""`train`, `plan` and `compare` in Python: the same runs as those of the command."""

from unittest.mock import Mock

import examples
import numpy as np
import pandas as pd
import polars as pl
import pytest
from examples import changed, table_section, write_table

import userdp
from simulations import RunConfig, compare, find, load_config, plan, query, train
from simulations.api import comparing
from simulations.api.arguments import OF_A_COMPARISON, OF_A_RUN, sections
from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare as run_all
from simulations.config.run_config import parse_config
from simulations.records.run_directory import FILES
from simulations.runs.build import make_plan
from simulations.runs.run import run
from userdp.errors import BadInput, RunFailed

COLUMNS = {"who": ["a"], "height": [170.0]}
CLIPPING = {"kind": "dp_fed_sgd", "clip_norm": 1.0, "rounds": 3}
DECLARED = examples.DECLARED | {"delta": 1e-3, "problem": "logistic"}
DECLARED |= {"ranges": {"height": (150, np.float64(200.0))}, "categorical": {"team": ("red", "green", "blue")}}
ASKED = {**DECLARED, "users": 48, "epsilon": 8.0, "strategy": CLIPPING, "seed": 3}


@pytest.fixture
def path(tmp_path):
    return write_table(tmp_path / "people.csv")


def configuration(path, **settings):
    raw = changed(
        name="model",
        problem={"kind": "logistic"},
        data=table_section(path, users=48),
        privacy={"epsilon": 8.0, "delta": 1e-3},
        strategy=CLIPPING,
        **settings,
    )
    return parse_config(raw)


def same(trained, outcome):
    np.testing.assert_array_equal(trained.model, outcome.model)
    assert trained.guarantee == outcome.guarantee
    assert trained.plan == outcome.plan
    measured = ("metrics", "reference", "reference_private", "guarantee", "users", "rounds", "name")
    assert {key: trained.result[key] for key in measured} == {key: outcome.result[key] for key in measured}


def test_none_among_levels_is_the_missing_cell_in_files_too(path):
    none, empty = (
        parse_config(sections(ASKED | {"categorical": {"team": ["red", level]}}, str(path), OF_A_RUN, "model")).toml()
        for level in (None, "")
    )
    assert none == empty


# Training ----------------------------------------------------------------------------------------------------------


def test_a_frame_a_path_and_a_configuration_give_one_run(tmp_path, path):
    config = configuration(path)
    outcome = run(config, directory=tmp_path / "run")
    for data, settings in [
        (pd.read_csv(path), ASKED),
        (pd.read_csv(path, dtype=str).astype(object), ASKED),
        (str(path), {**ASKED, "engine": "local", "scale": None}),
        (config, {}),
        (config.model_dump(exclude_none=True), {}),
    ]:
        same(train(data, progress=False, **settings), outcome)


@pytest.mark.slow
def test_the_file_of_a_configuration_is_trained_with_what_load_config_changes(tmp_path, path):
    (tmp_path / "run.toml").write_text(configuration(path).toml(), encoding="utf-8")
    config = load_config(tmp_path / "run.toml", ["seed=5"])
    assert isinstance(config, RunConfig)
    same(train(config, progress=False), run(config, directory=tmp_path / "run"))
    first = train(tmp_path / "run.toml", progress=False)
    assert (first.config.seed, first.result["seed"]) == (3, 3)


@pytest.mark.slow
def test_nothing_is_kept_unless_a_directory_is_named(tmp_path, path, monkeypatch):
    frame = pd.read_csv(path)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(work))
    model = train(frame, progress=False, **ASKED)
    assert model.directory is None
    assert not list(work.iterdir())
    with pytest.raises(BadInput, match="nothing was kept on disk; give a path"):
        model.report()
    assert model.report("page.html").read_text(encoding="utf-8") == model.page
    with pytest.raises(BadInput, match="cannot be written"):
        model.report("absent/page.html")
    kept = train(frame, directory="kept", progress=False, **ASKED)
    assert {file.name for file in (work / "kept").iterdir()} == set(FILES)
    assert kept.report() == kept.directory / "report.html"
    # The frame itself is nowhere, and its place is taken by a name.
    assert 'path = "frame.parquet"' in (work / "kept" / "config.toml").read_text(encoding="utf-8")


def test_what_a_stopped_run_had_written_stays_and_its_place_is_told(tmp_path, path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for error in (BadInput("enough"), RunFailed("enough")):
        monkeypatch.setattr("simulations.runs.run._train", Mock(side_effect=error))
        with pytest.raises(type(error), match="enough"):
            train(path, progress=False, **ASKED)
    (kept,) = tmp_path.glob("userdp-*/data.json")
    assert f"private figures too, is in {kept.parent}" in caplog.text


@pytest.mark.slow
def test_a_model_shows_its_guarantee_and_what_it_is_judged_by(path):
    model = train(pd.read_csv(path), progress=False, **ASKED)
    for shown in (repr(model), model._repr_html_()):
        assert "(8, 0.001)-differential privacy for replacing one whole user" in shown
        assert all(name in shown for name in ("this model", "initial model", "without privacy", "test_loss"))
    summary = model.summary()
    assert summary["this model"].to_dict() == model.metrics
    assert summary["initial model"].to_dict() == model.result["reference"]["initial"]
    assert list(model.rounds["round"]) == [1, 2, 3]
    alone = train(pd.read_csv(path), progress=False, **ASKED, output={"reference": False})
    assert list(alone.summary()) == ["this model", "best constant", "initial model"]
    unmeasured = train(
        pd.read_csv(path), progress=False, **ASKED, test_fraction=0.0, output={"reference": False, "evaluate_every": 2}
    )
    assert "no privacy guarantee" in repr(train(path, progress=False, **{**ASKED, "strategy": "non_private"}))
    assert "Not measured: nobody was held out." in repr(unmeasured)
    assert "Not measured" in unmeasured._repr_html_()


# Plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_opens_no_data_and_is_that_of_the_run(path):
    planned = make_plan(configuration(path))
    frame = pd.DataFrame({"nothing": []})
    for data in (None, frame, "absent.csv", configuration("absent.csv")):
        settings = {} if isinstance(data, RunConfig) else ASKED
        assert plan(data, **settings).as_dict() == planned.as_dict()
    assert train(path, progress=False, **ASKED).plan == planned
    with pytest.raises(BadInput, match=r"data.users is missing: a plan reads no data"):
        plan(**{**ASKED, "users": None})


# Comparisons -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_of_a_frame_is_that_of_the_command(tmp_path, path):
    settings = DECLARED | {"users": 48, "epsilon": 8.0, "strategy": [CLIPPING, "recentred_clipping"], "seeds": 1}
    comparison = parse_comparison(sections(settings, str(path), OF_A_COMPARISON, "comparison"))
    rows = pd.DataFrame(run_all(comparison, workers=0, directory=tmp_path / "command").rows)
    columns = ["strategy", "epsilon", "value", "initial", "reference_private", "spent_epsilon"]
    for result in (compare(pd.read_csv(path), **settings), compare(comparison), compare(comparison.raw)):
        pd.testing.assert_frame_equal(result.table[columns], rows[columns], check_dtype=False)
        assert result.directory is None
        assert "dp_fed_sgd" in repr(result)
        assert "<table" in result._repr_html_()
        assert result.report(tmp_path / "page.html").read_text(encoding="utf-8") == result.page


def test_strategies_and_lists_of_budgets_are_written_as_people_try_first(path):
    settings = {key: value for key, value in DECLARED.items() if key != "delta"} | {"users": 48, "seeds": 1}
    as_a_file = {"strategy": [CLIPPING], "grid": {"privacy.epsilon": [1.0, 4.0], "privacy.delta": [1e-3]}}
    expected = comparing._configured(path, settings | as_a_file, path.parent)
    for strategies in ({"strategies": [CLIPPING]}, {"strategy": CLIPPING}):
        given = settings | strategies | {"epsilon": [1.0, 4.0], "delta": np.array([1e-3])}
        assert comparing._configured(path, given, path.parent).raw == expected.raw
    with pytest.raises(BadInput, match="strategy and strategies are both given"):
        compare(path, **settings, epsilon=8.0, strategy=[CLIPPING], strategies=[CLIPPING])
    with pytest.raises(BadInput, match=r"epsilon is a list, and grid has privacy\.epsilon"):
        compare(path, **settings, **as_a_file, epsilon=[8.0])


def test_a_saved_model_is_loaded_from_anywhere(tmp_path, path):
    model = train(path, **DECLARED, users=48, epsilon=8.0, strategy=CLIPPING, progress=False)
    saved = userdp.load_model(model.save(tmp_path / "models" / "first"))
    pd.testing.assert_frame_equal(saved.predict(path), model.predict(path))
    assert saved.guarantee == model.guarantee
    assert userdp.load_model(saved.save(tmp_path / "second")).config == model.config
    for taken in (tmp_path / "second", path):
        with pytest.raises(BadInput, match=r"save\("):
            saved.save(taken)


@pytest.mark.slow
def test_a_comparison_in_a_directory_goes_on_where_it_was(tmp_path, path, monkeypatch):
    settings = DECLARED | {"users": 48, "epsilon": 8.0, "strategy": [CLIPPING], "seeds": 1, "directory": tmp_path / "c"}
    first = compare(path, **settings)
    monkeypatch.setattr("simulations.comparison.jobs.run_job", None)
    again = compare(path, **settings)
    pd.testing.assert_frame_equal(first.table, again.table)
    assert again.report() == tmp_path / "c" / "report.html"


# Refusals ----------------------------------------------------------------------------------------------------------


def test_settings_beside_a_configuration_and_data_of_another_kind_are_refused(path):
    with pytest.raises(BadInput, match="epsilon is given beside a configuration"):
        train(configuration(path), epsilon=2.0)


@pytest.mark.parametrize("call", [train, plan, compare, query, find])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (pl.DataFrame(COLUMNS).lazy(), r"the LazyFrame is no table: call .collect\(\) on it"),
        (COLUMNS, r"the dict is no table: make one by pandas.DataFrame\(data\)"),
        ([{"who": "a", "height": 1.0}], r"the list is no table: make one by pandas.DataFrame\(data\)"),
        (np.ones((2, 2)), r"the ndarray is no table: make one by pandas.DataFrame\(data\)"),
        (7, "the int is no table: give a DataFrame"),
    ],
    ids=["LazyFrame", "dict", "list of dicts", "array", "number"],
)
def test_data_of_another_kind_are_refused_by_what_makes_a_table_of_them(call, data, told):
    facts = {"numbers": ["height"], "all_users": 60} if call is find else {"features": ["height"]}
    with pytest.raises(BadInput, match=told):
        call(data, user="who", epsilon=2.0, delta=1e-3, **facts)

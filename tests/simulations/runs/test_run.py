import contextlib
import itertools
import json
import re
import tomllib
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from examples import BASE, broken, changed, columns_section, table_section, write_table
from helpers import Watching

import simulations.records.environment
import simulations.runs.build
import simulations.runs.run
import userdp.data.synthetic.source
import userdp.data.tables.sources
from simulations.config.run_config import parse_config
from simulations.records.checkpoints import Checkpoints
from simulations.records.evaluation import Evaluation
from simulations.records.run_directory import FILES, RunDirectory, new_directory, next_directory, plain, write_whole
from simulations.runs.build import (
    check_samples,
    load_datasets,
    make_plan,
    public_facts,
    server_datasets,
    with_assumptions,
)
from simulations.runs.run import run
from strategies import PublicFacts
from strategies.core.mean_rounds import MeanRounds
from strategies.non_private import ReferenceScheme
from userdp.accounting import Guarantee
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.problems import Quadratic

RESULT_KEYS = {
    "name": str,
    "strategy": str,
    "problem": str,
    "engine": str,
    "seed": int,
    "users": int,
    "samples": int,
    "samples_private": type(None),
    "dimension": int,
    "rounds": int,
    "guarantee": dict,
    "metrics": dict,
    "reference": dict,
    "reference_private": dict,
    "better_than_constant": type(None),
    "better_than_initial": bool,
    "missing_users_private": int,
    "non_finite_users_private": int,
    "seconds": dict,
    "peak_memory_mib": float,
    "computed": type(None),
    "versions": dict,
}
MEASURED_KEYS = {"measured_users": int, "standard_errors": dict}
"""Further keys of a run that did not fail and has something to measure."""
ONE_PHASE = {"kind": "localized_robust_sgd", "batch": 500, "phases": 1, "deviation": 1.0, "learning_rate": 0.5}
"""Four rounds of 2000 users, one release at the end."""
GUARANTEE_KEYS = ["unit", "relation", "epsilon", "delta", "accountant", "adversary", "assumptions", "holds"]

SHIPPED = Path(__file__).resolve().parents[3] / "simulations" / "configs"


EIGHT_NODES = {"kind": "local", "users_per_node": 50}


def go(folder, report=False, **settings):
    return run(parse_config(changed(**settings)), directory=folder / "run", report=report)


def stored(folder, name="result.json"):
    path = folder / "run" / name
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    return pd.read_parquet(path) if path.suffix == ".parquet" else json.loads(path.read_text())


# The directory and result.json --------------------------------------------------------------------------------------


def test_a_run_leaves_the_documented_files_and_exactly_the_documented_keys(tmp_path):
    outcome = go(tmp_path, report=True)
    assert {path.name for path in outcome.directory.iterdir()} == set(FILES)
    result = stored(tmp_path)
    assert result == outcome.result
    assert {key: type(value) for key, value in result.items()} == RESULT_KEYS | MEASURED_KEYS
    assert list(result) == list(RESULT_KEYS | MEASURED_KEYS)
    assert list(result["guarantee"]) == GUARANTEE_KEYS
    assert list(result["reference"]) == ["initial", "constant", "released_constant", "difference_errors"]
    assert list(result["reference_private"]) == ["non_private"]
    assert list(result["seconds"]) == ["total", "per_round"]
    assert list(result["versions"]) == ["python", "userdp", "flwr", "ray", "numpy", "torch", "opendp"]
    told = {"excess_risk", "test_loss", "test_loss_p10", "test_loss_p50", "test_loss_p90"}
    assert result["metrics"].keys() == result["reference"]["initial"].keys() == told
    assert (result["users"], result["samples"], result["dimension"], result["rounds"]) == (400, 2400, 3, 3)
    assert result["engine"] == "local"
    assert result["guarantee"]["holds"]
    assert 0 < result["guarantee"]["epsilon"] <= 4.0
    assert result["better_than_initial"] == (
        result["metrics"]["excess_risk"] < result["reference"]["initial"]["excess_risk"]
    )
    assert 10 < result["peak_memory_mib"] < 1e5


def test_model_rounds_guarantee_and_plan_agree_with_the_result(tmp_path):
    outcome = go(tmp_path)
    (model,) = stored(tmp_path, "model.npz").values()
    np.testing.assert_array_equal(model, outcome.model)
    rounds = stored(tmp_path, "rounds.parquet")
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["metric.excess_risk"].iloc[-1] == outcome.result["metrics"]["excess_risk"]
    assert rounds["spent_epsilon"].is_monotonic_increasing
    guarantee = stored(tmp_path, "guarantee.json")
    assert {key: guarantee[key] for key in GUARANTEE_KEYS} == outcome.result["guarantee"]
    assert guarantee["sentence"].startswith("(")
    assert guarantee["spent_epsilon"] == pytest.approx(guarantee["epsilon"])
    config = parse_config(BASE)
    assert stored(tmp_path, "plan.json") == plain(make_plan(config).as_dict())
    assert parse_config(tomllib.loads((tmp_path / "run" / "config.toml").read_text())) == config


def test_only_released_models_are_stored(tmp_path, monkeypatch):
    """Iterates inside a phase are not private: before the first release the stored model is the initial one."""
    monkeypatch.setattr("simulations.records.run_directory._SECONDS_BETWEEN_WRITES", 0.0)
    seen, measured, measure = [], [], Evaluation.__call__
    monkeypatch.setattr(Evaluation, "__call__", lambda self, x: measured.append(x) or measure(self, x))
    raw = changed(strategy=ONE_PHASE, data__users=2000, output={"reference": False})
    outcome = run(
        parse_config(raw),
        directory=tmp_path / "run",
        report=False,
        observers=[Watching(lambda record, plan: seen.append(stored(tmp_path, "model.npz")["x"]))],
    )
    np.testing.assert_array_equal(seen, [*np.zeros((3, 3)), outcome.model])
    assert np.abs(outcome.model).max() > 0
    assert len(measured) == 2  # the initial model and the one release, for four rounds


def test_a_run_that_is_killed_leaves_its_rounds_and_the_guarantee_of_the_model_that_it_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.records.run_directory._SECONDS_BETWEEN_WRITES", 0.0)
    seen = []

    def look(record, plan):
        assert stored(tmp_path, "model.npz")["x"].any()
        promised = stored(tmp_path, "guarantee.json")
        assert promised["epsilon"] == promised["spent_epsilon"] == plan.guarantee.epsilon
        rounds = stored(tmp_path, "rounds.parquet")
        assert rounds["spent_epsilon"].iloc[-1] == record.spent_epsilon
        seen.append((record.round, plan.rounds, len(rounds), record.spent_epsilon))

    run(parse_config(BASE), directory=tmp_path / "run", report=False, observers=[Watching(look)])
    assert [told[:3] for told in seen] == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]
    spent = [epsilon for *_, epsilon in seen]
    assert 0 < spent[0] < spent[1] < spent[2] <= stored(tmp_path, "guarantee.json")["epsilon"]


def test_no_model_is_on_disk_before_its_guarantee(tmp_path, monkeypatch):
    """Whenever a run is killed, no model lies there that its guarantee does not cover."""
    written, original = [], write_whole
    monkeypatch.setattr(
        "simulations.records.run_directory.write_whole",
        lambda path, write: written.append(path.name) or original(path, write),
    )
    RunDirectory(tmp_path).progress([], np.zeros(2), dict, now=True)
    assert written == ["guarantee.json", "rounds.parquet", "model.npz"]


def test_every_promise_of_a_simulation_says_that_whoever_knows_the_seed_can_undo_it(tmp_path):
    told = "noise comes from a seeded generator: this is a simulation, whoever knows the seed can undo it"
    result = go(tmp_path, output={"reference": False}).result
    assert result["reference_private"]["non_private"] is None
    plan = stored(tmp_path, "plan.json")
    for promise in (result["guarantee"], stored(tmp_path, "guarantee.json"), plan["guarantee"]):
        assert told in promise["assumptions"]
    assert told not in make_plan(parse_config(changed(privacy__noise="secure"))).guarantee.assumptions


def test_a_rerun_replaces_the_files_of_a_run_and_no_others(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("notes.txt", "result.json"):
        (tmp_path / "run" / name).write_text("mine")
    go(tmp_path, output={"reference": False})
    assert stored(tmp_path)["name"] == "small"
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_no_run_writes_over_another_whatever_its_settings(tmp_path):
    output = {"directory": str(tmp_path), "reference": False}
    runs = [
        run(parse_config(changed(output=output, privacy__epsilon=epsilon)), report=False) for epsilon in (4.0, 2.0, 4.0)
    ]
    first = tmp_path / "small-dp_fed_sgd-seed3"
    assert [one.directory for one in runs] == [first, Path(f"{first}-2"), Path(f"{first}-3")]
    for one in runs:
        assert json.loads((one.directory / "result.json").read_text()) == one.result


def test_the_number_of_a_directory_is_above_all_that_are_there(tmp_path):
    for name in ("a-4", "a-x", "ab", "a-2-9"):
        (tmp_path / name).mkdir()
    assert next_directory(tmp_path / "a", secure=False) == tmp_path / "a-5"
    assert next_directory(tmp_path / "b", secure=False) == tmp_path / "b"
    assert next_directory(tmp_path / "absent" / "a", secure=False) == tmp_path / "absent" / "a"


def test_of_two_runs_that_start_together_each_has_a_directory_of_its_own(tmp_path, monkeypatch):
    seen = iter([tmp_path / "a", tmp_path / "a", tmp_path / "a-2"])
    monkeypatch.setattr("simulations.records.run_directory.next_directory", lambda path, *, secure: next(seen))
    assert [new_directory(tmp_path / "a", secure=False).name for _ in range(2)] == ["a", "a-2"]


def test_a_file_in_place_of_the_folder_of_all_runs_ends_the_search_for_a_name(tmp_path):
    (tmp_path / "file").write_text("")
    assert new_directory(tmp_path / "file" / "a", secure=False) == tmp_path / "file" / "a"


@pytest.mark.parametrize("_", range(20))
def test_of_secure_runs_of_one_name_that_start_together_one_releases(tmp_path, _):
    """Each looks, takes the name or is refused; which of them is first does not matter."""
    together, taken, refused = Barrier(6), [], []

    def start():
        together.wait()
        try:
            taken.append(new_directory(tmp_path / "a", secure=True))
        except BadInput as error:
            refused.append(str(error))

    threads = [Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [tmp_path / "a"]
    assert len(refused) == 5
    assert all("has not ended" in sentence for sentence in refused)


def test_a_secure_run_takes_a_folder_that_its_caller_named_for_itself(tmp_path):
    """Two runs may start together: the second would release too, and overwrite the first."""
    secure = parse_config(changed(privacy__noise="secure"))
    with (
        Checkpoints(tmp_path / "a", secure).held(),
        pytest.raises(BadInput, match="belongs to a run that has not ended"),
    ):
        run(secure, directory=tmp_path / "a", report=False)
    run(secure, directory=tmp_path / "a", report=False, checkpoint=True)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted({*FILES} - {"report.html"})


def test_a_secure_run_goes_beside_simulations_runs_that_ended_without_a_release_and_strange_folders(tmp_path):
    for name in ("a", "a-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-2" / "notes.txt").write_text("somebody's own")
    config, taken = tmp_path / "a" / "config.toml", tmp_path / "a-3"
    config.write_text('privacy = { noise = "secure" }')
    with pytest.raises(BadInput, match="has not ended"):
        new_directory(tmp_path / "a", secure=True)
    config.write_text('privacy = { noise = "seeded" }')
    assert new_directory(tmp_path / "a", secure=True) == taken
    taken.rmdir()
    # What a run wrote that failed before anything was released; without all of it nobody can tell.
    files = RunDirectory(tmp_path / "a")
    files.progress([], np.zeros(1), lambda: {"holds": True}, now=True)
    files.json("result.json", {"rounds": 0})
    config.write_text('privacy = { noise = "secure" }')
    assert new_directory(tmp_path / "a", secure=True) == taken
    taken.rmdir()
    for guarantee, model, rounds in (
        ({}, np.zeros(1), 0),
        ({"holds": True}, np.zeros((1, 1)), 0),
        ({"holds": 1}, np.zeros(1), 1),
    ):
        files.progress([], model, lambda kept=guarantee: kept, now=True)
        files.json("result.json", {"rounds": rounds})
        with pytest.raises(BadInput, match="cannot be drawn again"):
            new_directory(tmp_path / "a", secure=True)
    (tmp_path / "a").rename(tmp_path / "a-7")
    with pytest.raises(BadInput, match=r"a-7 holds .* cannot be drawn again"):
        new_directory(tmp_path / "a", secure=True)


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(BadInput, match=r"output.directory: .* cannot be written"):
        go(tmp_path)


def test_a_reference_that_fails_does_not_fail_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ReferenceScheme, "ask", Mock(side_effect=RunFailed("no luck")))
    result = go(tmp_path).result
    assert result["reference_private"]["non_private"] is None
    assert "error" not in result
    assert "no luck" in caplog.text


def test_without_privacy_nothing_is_promised(tmp_path):
    result = go(tmp_path, strategy={"kind": "non_private"}).result
    assert {name: result["guarantee"][name] for name in ("epsilon", "holds", "assumptions")} == {
        "epsilon": None,
        "holds": False,
        "assumptions": [],
    }
    assert result["reference_private"]["non_private"] == result["metrics"]


def test_evaluation_follows_its_schedule_and_always_ends_with_the_last_round(tmp_path):
    go(tmp_path, strategy__rounds=8, output={"evaluate_every": 3, "reference": False})
    rounds = stored(tmp_path, "rounds.parquet")
    assert rounds.loc[rounds["metric.test_loss"].notna(), "round"].tolist() == [1, 3, 6, 8]


# Edge cases --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"data__dimension": 1},
        {"strategy__rounds": 1},
        {"data__users": 401},
        {"data__samples_per_user": 1},
        {"data__samples_tail": 1.5, "data__samples_max": 40},
        {"strategy": {"kind": "robust_rounds", "rounds": 2, "deviation": 1.0}, "data__users": 501},
        {"strategy": {"kind": "sample_clipped_sgd", "rounds": 2}, "privacy__unit": "sample"},
        {"problem": {"kind": "torch", "loss": "mse", "has_targets": False, "outputs": 3}},
    ],
    ids=str,
)
def test_small_and_odd_sizes_run(tmp_path, settings):
    result = go(tmp_path, **settings).result
    assert result["guarantee"]["holds"]
    assert "error" not in result


def test_users_that_are_all_equal_are_fine(tmp_path):
    path = tmp_path / "equal.csv"
    rows = [(f"user{i}", 1.0) for i in range(50) for _ in range(2)]
    pd.DataFrame(rows, columns=["who", "value"]).to_csv(path, index=False)
    data = columns_section(path, {"value": [0.0, 2.0]})
    result = go(tmp_path, data=data, privacy={"epsilon": 4.0, "delta": 1e-3}).result
    assert result["guarantee"]["holds"]
    assert result["users"] == 40


def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(tmp_path, monkeypatch):
    original, nobody = Quadratic.user_gradients, np.array([np.nan, 0.0, 0.0])

    def gradients(self, x, block):
        return np.vstack([nobody, original(self, x, block)[1:]])

    monkeypatch.setattr(Quadratic, "user_gradients", gradients)
    outcome = go(tmp_path, output={"reference": False}, engine=EIGHT_NODES)
    assert outcome.result["non_finite_users_private"] == 3 * 8  # one a node and round
    assert np.isfinite(outcome.model).all()


def test_a_model_that_diverges_is_not_better_and_its_metrics_are_null(tmp_path, monkeypatch):
    monkeypatch.setattr(Quadratic, "excess_risk", lambda self, x, federation: np.inf if x.any() else 1.0)
    result = go(tmp_path, output={"reference": False}).result
    assert result["better_than_initial"] is False
    assert result["metrics"]["excess_risk"] is None


# Tables ------------------------------------------------------------------------------------------------------------


def logistic(path, **settings):
    return changed(
        problem={"kind": "logistic"}, data=table_section(path, **settings), privacy={"epsilon": 4.0, "delta": 1e-3}
    )


@pytest.mark.parametrize("settings", [{}, {"users": 40, "min_samples": 2}], ids=["counted", "declared"])
def test_a_table_trains_and_its_counted_users_are_an_assumption(tmp_path, settings):
    path = write_table(tmp_path / "t.csv")
    result = run(parse_config(logistic(path, **settings)), directory=tmp_path / "run", report=False).result
    users = settings.get("users", 48)
    assert (result["users"], result["samples"], result["samples_private"]) == (users, None, 4 * users)
    assumptions = result["guarantee"]["assumptions"]
    counted = ["read from the data and is taken as public" in one for one in assumptions]
    assert any(counted) == (not settings)
    assert ("who holds at least 2 samples is public" in assumptions) == bool(settings)
    assert stored(tmp_path, "data.json")["table_private"]["rows"] == 240


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5])
def test_of_the_number_of_all_users_the_plan_takes_off_those_whom_the_loader_holds_out(tmp_path, share):
    config = parse_config(logistic(write_table(tmp_path / "t.csv", users=61), all_users=61, test_fraction=share))
    datasets = load_datasets(config)
    held_out = 0 if datasets.test is None else datasets.test.users
    assert public_facts(config).users == datasets.train.users == 61 - held_out
    assert held_out == {0.0: 0, 0.01: 1, 0.2: 12, 0.5: 30}[share]
    assert not any("read from the data" in one for one in config.data.assumptions)


def test_a_server_without_data_knows_its_users_from_the_number_of_all():
    settings = {"all_users": 60, "test_fraction": 0.0}
    raw = logistic("absent.csv", **settings) | {"privacy": {"epsilon": 4.0, "delta": 1e-3, "noise": "secure"}}
    config = parse_config(raw)
    assert server_datasets(config).train is None
    assert public_facts(config).users == 60


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"users": 48}, BadInput, "data.users = 48 are both given"),
        ({"min_samples": 2}, BadInput, "with data.min_samples = 2: the number of users with so many"),
        ({"all_users": 1}, BadInput, "test_fraction = 0.2: everybody is held out"),
        ({"all_users": 61}, PopulationTooSmall, "data.all_users = 61, but the data have 60 users in all"),
        ({"all_users": 59}, BadInput, "data.all_users = 59, but the data have 60 users in all"),
    ],
    ids=str,
)
def test_a_number_of_all_users_that_cannot_be_taken_is_refused(tmp_path, settings, error, told):
    config = parse_config(logistic(write_table(tmp_path / "t.csv"), **{"all_users": 60, **settings}))
    for take in (load_datasets, make_plan) if "the data have" not in told else (load_datasets,):
        with pytest.raises(error, match=re.escape(told)):
            take(config)


@pytest.mark.parametrize("users", [None, 40])
def test_nobody_who_is_held_out_is_trained_on(tmp_path, users):
    path = tmp_path / "t.csv"
    pd.DataFrame({"who": [f"user{i}" for i in range(60)], "value": np.linspace(0, 2, 60)}).to_csv(path, index=False)
    data = columns_section(path, {"value": [0.0, 2.0]})
    datasets = load_datasets(parse_config(changed(data=data | ({"users": users} if users else {}))))
    people = [set(one.block(np.arange(one.users)).features[:, 0].tolist()) for one in (datasets.train, datasets.test)]
    assert [len(one) for one in people] == [users or 48, 12]
    assert not people[0] & people[1]


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"users": 49}, PopulationTooSmall, "data.users = 49, but the data leave 48 training users"),
        ({"path": "absent.csv"}, BadInput, "absent.csv does not exist"),
        ({"target": "pased"}, BadInput, "has no column 'pased'; did you mean 'passed'?"),
        ({"min_samples": 5}, PopulationTooSmall, "min_samples = 5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_table_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, settings, error, told):
    path = write_table(tmp_path / "t.csv")
    with pytest.raises(error, match=re.escape(told)):
        run(parse_config(logistic(**{"path": path, **settings})), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["insteval", "chem97", "males"])
def test_real_users_beat_the_initial_model(tmp_path, monkeypatch, public_cache, name):
    monkeypatch.setenv("USERDP_DATA", str(public_cache))
    path = SHIPPED / f"{name}.toml"
    result = run(simulations.config.run_config.load_config(path), directory=tmp_path / "run", report=False).result
    guarantee = result["guarantee"]
    assert result["better_than_initial"]
    assert (guarantee["unit"], guarantee["holds"], guarantee["delta"]) == ("user", True, 1e-5)
    assert guarantee["epsilon"] <= 4.0


# The plan touches no data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["synthetic", "table", "public"])
def test_a_plan_reads_no_data(tmp_path, monkeypatch, source):
    forbidden = Mock(side_effect=AssertionError("data were touched"))
    for name in ("table_of", "public_file", "split"):
        monkeypatch.setattr(userdp.data.tables.sources, name, forbidden)
    monkeypatch.setattr(userdp.data.synthetic.source, "SyntheticFederation", forbidden)
    raw = {
        "synthetic": BASE,
        "table": logistic(tmp_path / "absent.csv", users=900),
        "public": changed(problem={"kind": "squared"}, data={"kind": "public", "name": "insteval"}),
    }[source]
    raw = {**raw, "privacy": {"epsilon": 4.0, "delta": 1e-5}}
    assert make_plan(parse_config(raw)).users == {"synthetic": 400, "table": 900, "public": 2972 - 594}[source]
    with pytest.raises(AssertionError, match="data were touched"):
        load_datasets(parse_config(raw))


# Failed runs -------------------------------------------------------------------------------------------------------


def test_a_run_whose_nodes_fail_keeps_what_it_had(tmp_path, monkeypatch):
    asked = itertools.count()
    broken(monkeypatch, lambda node, x: next(asked) >= 2 * 8)
    with pytest.raises(RunFailed, match="did not answer"):
        go(tmp_path, strategy__rounds=5, engine=EIGHT_NODES)
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert kept == set(FILES) - {"report.html"}
    result = stored(tmp_path)
    assert {*result} == {*RESULT_KEYS, "error"}
    assert "did not answer" in result["error"]
    assert "secret data" not in json.dumps(result)
    assert list(result["reference"]) == ["initial"]  # nothing more is measured
    assert result["rounds"] == 2
    rounds = stored(tmp_path, "rounds.parquet")
    assert len(rounds) == 2
    assert result["guarantee"]["holds"]
    assert rounds["spent_epsilon"].iloc[-1] < result["guarantee"]["epsilon"] < 4.0 * 0.9  # the third round was asked
    assert result["metrics"]["excess_risk"] == rounds["metric.excess_risk"].iloc[-1]
    assert np.abs(stored(tmp_path, "model.npz")["x"]).max() > 0


def test_a_run_that_fails_before_its_first_round_keeps_the_initial_model(tmp_path, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(RunFailed):
        go(tmp_path)
    result = stored(tmp_path)
    assert result["rounds"] == 0
    assert 0 < result["guarantee"]["epsilon"] < 4.0 * 0.9
    assert list(stored(tmp_path, "rounds.parquet").columns)[:2] == ["round", "seconds"]
    np.testing.assert_array_equal(stored(tmp_path, "model.npz")["x"], np.zeros(3))


def test_an_unexpected_error_becomes_a_failed_run_that_quotes_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr(MeanRounds, "take", Mock(side_effect=KeyError("secret data")))
    with pytest.raises(RunFailed, match=r"unexpected KeyError in .*; what the run had written is in") as caught:
        go(tmp_path)
    assert "secret" not in str(caught.value)
    assert stored(tmp_path)["error"] == "unexpected KeyError"


def test_writes_are_two_seconds_apart(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("simulations.records.run_directory.time.monotonic", lambda: clock.now)
    files = RunDirectory(tmp_path / "run")
    (tmp_path / "run").mkdir(exist_ok=True)
    for later, value, there in ((0.0, 0.0, 0), (1.9, 1.0, 0), (0.2, 1.0, 1)):
        clock.now += later
        files.progress([], np.full(1, value), dict)
        assert stored(tmp_path, "model.npz")["x"] == there


def test_json_has_no_numbers_that_json_lacks():
    values = {"a": float("nan"), "b": [float("inf"), np.float64(2.0)], "c": (np.int64(3), True, None, "x")}
    assert plain(values) == {"a": None, "b": [None, 2.0], "c": [3, True, None, "x"]}


def test_the_version_is_that_of_the_code_that_runs_though_nothing_is_installed(monkeypatch):
    """A Flower app brings the packages and pyproject.toml, and no metadata."""
    monkeypatch.setattr(simulations.records.environment, "version", lambda name: f"installed {name}")
    project = tomllib.loads((SHIPPED.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert simulations.records.environment.own_version() == project["project"]["version"]


def promise(unit, relation):
    return Guarantee(unit, relation, 1.0, 1e-6, "an accountant", "against others", (), True)


@pytest.mark.parametrize("unit", ["sample", "user"])
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_only_a_count_that_neighbours_share_may_refuse_a_run(unit, relation):
    shared = (unit, relation) == ("sample", "replace_one")
    with pytest.raises(BadInput) if shared else contextlib.nullcontext():
        check_samples(PublicFacts(10, samples=50), SimpleNamespace(samples=51), promise(unit, relation))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("unit", ["sample", "user"])
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_which_samples_are_kept_is_said_where_a_sample_may_come_or_go(keeps, unit, relation, tmp_path):
    """One more sample of a person with too many can take the place of another: two samples differ, not one."""
    config = parse_config(logistic(tmp_path / "t.csv", max_samples=2 if keeps else None))
    told = with_assumptions(promise(unit, relation), config).assumptions
    kept = any("one of those that data.max_samples keeps" in one for one in told)
    assert kept == (keeps and (unit, relation) == ("sample", "add_or_remove"))


def test_a_round_that_fails_after_its_charge_is_in_the_guarantee(tmp_path, monkeypatch):
    take = MeanRounds.take

    def failing(self, index, *arguments):
        made = take(self, index, *arguments)
        return 1 / 0 if index == 1 else made  # after the release

    monkeypatch.setattr(MeanRounds, "take", failing)
    with pytest.raises(RunFailed):
        go(tmp_path, output={"reference": False})
    kept = stored(tmp_path, "guarantee.json")
    assert kept["epsilon"] == kept["spent_epsilon"] > 0

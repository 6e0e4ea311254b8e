"""Private evaluation from the command line: neighbours in either part, engines, silos, and what is shown."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from flwr.app import MessageType
from helpers import forgive_ray
from helpers_silos import rehearsed

from simulations.config.run_config import parse_config
from simulations.engines.grids import InMachineGrid, LocalGrid
from simulations.records.run_directory import RunDirectory
from simulations.reports.card import card
from simulations.reports.explain import shown_claim
from simulations.reports.report import copy_released, page
from simulations.runs.build import held_out_users, load_datasets, make_plan
from simulations.runs.run import run
from simulations.runs.silos import prepare, silo_node, split
from simulations.runs.trackers import _ending
from userdp.accounting import Cost, calibrate_noise, epsilon_of
from userdp.data.tables.contributions import slots
from userdp.errors import BadInput, RunFailed

PEOPLE, TESTERS = 60, 15
NAMES = [f"p{number:02}" for number in range(PEOPLE)]


def table(path, changed=None):
    """Write a table of 60 people with four rows each; ``changed`` gets other rows."""
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"who": np.repeat(NAMES, 4), "x": rng.uniform(-1, 1, 4 * PEOPLE)})
    rows["y"] = (rng.random(len(rows)) < 1 / (1 + np.exp(-4 * rows.x))).astype(int)
    if changed is not None:
        own = rows.who == changed
        rows.loc[own, "x"] *= -1
        rows.loc[own, "y"] = 1 - rows.y
    rows.to_csv(path, index=False)
    return path


def config_of(path, folder, strategy=None, **privacy):
    return parse_config(
        {
            "name": "evaluated",
            "problem": {"kind": "logistic"},
            "data": {
                "kind": "table",
                "path": str(path),
                "user": "who",
                "target": "y",
                "features": ["x"],
                "ranges": {"x": [-1.0, 1.0]},
                "all_users": PEOPLE,
                "test_fraction": 0.25,
            },
            "strategy": {"kind": "dp_fed_sgd", "rounds": 4, **(strategy or {})},
            "privacy": {"epsilon": 4.0, "delta": 1e-3, "evaluate": True, **privacy},
            "output": {"directory": str(folder)},
        }
    )


def outcome_of(tmp_path, name, changed=None, **privacy):
    config = config_of(table(tmp_path / f"{name}.csv", changed), tmp_path / "runs", **privacy)
    return run(config, directory=tmp_path / name)


def test_a_run_shows_what_is_covered_beside_what_is_not(tmp_path):
    outcome = outcome_of(tmp_path, "plain", epsilon=40.0)
    found = json.loads((tmp_path / "plain" / "result.json").read_text())["held_out"]
    assert found["users"] == TESTERS
    assert set(found["metrics"]) >= {"log_loss", "accuracy", "deviance_explained", "predicted_minus_observed"}
    low, high = found["metrics"]["accuracy"]["interval"]
    assert low <= outcome.result["metrics"]["accuracy"] <= high
    page = (tmp_path / "plain" / "report.html").read_text()
    assert "Metrics that the guarantee covers" in page
    assert "Metrics that it does not cover" in page
    rounds = pd.read_parquet(tmp_path / "plain" / "rounds.parquet")
    assert rounds["fact.held_out_loss"].iloc[-4:].notna().all()
    promise = json.loads((tmp_path / "plain" / "guarantee.json").read_text())
    assert 30 < promise["held_out_spent_epsilon"] <= 40 * (1 + 1e-6)  # rounds that changed no model asked nothing


def test_neighbours_in_either_part(tmp_path):
    """Another tester leaves every model as it is; another trainee leaves the sums of testers as they are at a model."""
    plain = outcome_of(tmp_path, "plain")
    training, held_out = slots(PEOPLE, TESTERS, 0)
    names = config_of(tmp_path / "plain.csv", tmp_path).data.table(0).labels
    tester = outcome_of(tmp_path, "tester", changed=names[held_out[0]])
    assert np.array_equal(plain.model, tester.model)
    moved = [
        abs(plain.result["held_out"]["metrics"][name]["value"] - tester.result["held_out"]["metrics"][name]["value"])
        for name in ("accuracy", "log_loss")
    ]
    assert max(moved) > 0
    assert moved[0] <= 1 / TESTERS + 1e-9
    assert moved[1] <= 2 * np.log(2) / TESTERS + 1e-9
    still = {"clip_norm": 1e-12, "learning_rate": 0.1}  # noise alone moves the model, to the same place
    models = []
    for name, changed in (("first", None), ("second", names[training[0]])):
        config = config_of(table(tmp_path / f"{name}.csv", changed), tmp_path / "runs", still)
        models.append(run(config, directory=tmp_path / name).result["held_out"]["metrics"])
    for name in ("accuracy", "log_loss"):
        assert models[0][name]["value"] == pytest.approx(models[1][name]["value"], abs=1e-9)


def test_silos_hold_out_the_same_people_as_a_simulation_and_get_the_same_run(tmp_path):
    """Dealt out by a rehearsal; silos that prepare their own tables number people by themselves, in another order."""
    path = table(tmp_path / "all.csv")
    config = config_of(path, tmp_path / "runs")
    simulated = run(config, directory=tmp_path / "simulated")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert split(config, folders) == [30, 30]
    dealt = deployed(config, folders, tmp_path / "dealt")
    assert dealt.model == pytest.approx(simulated.model, abs=1e-9)
    for name, one in simulated.result["held_out"]["metrics"].items():
        assert dealt.result["held_out"]["metrics"][name]["value"] == pytest.approx(one["value"], abs=1e-9)
    whole = pd.read_csv(path)
    for number, first in enumerate((0, 30)):
        own = tmp_path / f"silo{number}.csv"
        whole[whole.who.between(NAMES[first], NAMES[first + 29])].to_csv(own, index=False)
        there = config.data.model_copy(update={"path": str(own), "all_users": None, "users": 30})
        prepare(config.model_copy(update={"data": there}), tmp_path / f"own{number}", first)
    prepared = deployed(config, [tmp_path / "own0", tmp_path / "own1"], tmp_path / "prepared").result["held_out"]
    assert prepared["users"] == TESTERS
    assert set(prepared["metrics"]) == set(dealt.result["held_out"]["metrics"])


def deployed(config, folders, directory):
    from simulations.runs.build import starting_problem

    rehearsed(folders)
    problem = starting_problem(config)
    return run(config, grid=LocalGrid([silo_node(config, problem, folder) for folder in folders]), directory=directory)


@pytest.mark.slow
@forgive_ray
def test_ray_gives_the_same_to_the_bit(tmp_path):
    local = outcome_of(tmp_path, "local")
    config = config_of(tmp_path / "local.csv", tmp_path / "runs")
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"kind": "ray", "workers": 2})})
    ray = run(config, directory=tmp_path / "ray")
    assert ray.result["held_out"] == local.result["held_out"]


def test_plans_and_refusals(tmp_path):
    config = config_of(table(tmp_path / "people.csv"), tmp_path)
    plan = make_plan(config)
    assert plan.numbers["held_out_users"] == TESTERS
    nobody = config.data.model_copy(update={"test_fraction": 0.0})
    with pytest.raises(BadInput, match="no public number of held-out users above 0"):
        make_plan(config.model_copy(update={"data": nobody}))
    unknown = config.data.model_copy(update={"all_users": None, "users": 45})
    with pytest.raises(BadInput, match="no public number of held-out users above 0"):
        make_plan(config.model_copy(update={"data": unknown}))
    by_column = config.data.model_copy(update={"split_column": "x"})
    with pytest.raises(BadInput, match="would follow from people's own data"):
        make_plan(config.model_copy(update={"data": by_column}))
    people = load_datasets(config)
    assert people.test is not None
    with pytest.raises(BadInput, match="would follow from people's own data"):
        held_out_users(config.model_copy(update={"data": by_column}), people)
    silent = config.privacy.model_copy(update={"evaluate": False})
    with pytest.raises(BadInput, match=r"set privacy\.evaluate = true"):
        split(config.model_copy(update={"privacy": silent}), [tmp_path / "a", tmp_path / "b"])


def test_choosing_the_best_model_turns_evaluation_on_and_contradicts_its_absence(tmp_path):
    path = table(tmp_path / "table.csv")
    for evaluate in (None, True):
        assert config_of(path, tmp_path, choose_best=True, evaluate=evaluate).privacy.evaluate
    with pytest.raises(BadInput, match="it is held-out users who choose"):
        config_of(path, tmp_path, choose_best=True, evaluate=False)


def test_the_python_call_has_them(tmp_path):
    import userdp

    rows = pd.read_csv(table(tmp_path / "people.csv"))
    settings = {"user": "who", "target": "y", "features": ["x"], "ranges": {"x": [-1.0, 1.0]}}
    model = userdp.train(rows, **settings, problem="logistic", epsilon=4.0, delta=1e-3, evaluate=True)
    assert {"accuracy", "log_loss"} <= set(model.covered.index)
    assert (model.covered.low <= model.covered.value).all()


# Runs that stop ----------------------------------------------------------------------------------------------------

TRAIN, EVALUATE = MessageType.TRAIN, MessageType.EVALUATE
EXCHANGES = [(TRAIN, None), (EVALUATE, 0.25 / 2)] * 2 + [(EVALUATE, 0.1), (EVALUATE, 0.65)]
"""The questions to people in two rounds of a model with classes, and the share of the budget of each answer."""
STRATEGY = {"rounds": 2, "clip_norm": 1e-3, "learning_rate": 1.0}


def met(asked, delta=1e-3, epsilon=4.0):
    """Epsilon of those who train, and of those who are held out, after so many exchanges."""
    multiplier = calibrate_noise(epsilon, delta, 1)
    rounds = sum(kind == TRAIN for kind, _ in EXCHANGES[:asked])
    answers = sum(share for kind, share in EXCHANGES[:asked] if kind == EVALUATE)
    shares = (rounds / 2, answers)
    return tuple(epsilon_of(Cost(multiplier / share**0.5), 1, delta) if share else 0.0 for share in shares)


def stopping(patch, moment, how):
    """Stop a run in its exchange number ``moment``: an error before or after nodes answered, or nobody's answer."""
    kinds, send = [], InMachineGrid.send_and_receive

    def sent(grid, messages, **more):
        messages = list(messages)
        kind = messages[0].metadata.message_type
        if kind not in (TRAIN, EVALUATE):  # who is there
            return send(grid, messages, **more)
        kinds.append(kind)
        if len(kinds) <= moment:
            return send(grid, messages, **more)
        if how == "silent":
            return []
        if how == "answered":
            list(send(grid, messages, **more))
        raise KeyboardInterrupt if how == "interrupted" else RunFailed("stopped")

    patch.setattr(InMachineGrid, "send_and_receive", sent)
    return kinds


def stopped(tmp_path, monkeypatch, moment, how, **privacy):
    with monkeypatch.context() as patch:
        kinds = stopping(patch, moment, how)
        config = config_of(table(tmp_path / "table.csv"), tmp_path / "runs", STRATEGY, **privacy)
        with pytest.raises((RunFailed, KeyboardInterrupt)):
            run(config, directory=tmp_path / "run", report=False)
    assert kinds == [kind for kind, _ in EXCHANGES[: moment + 1]]
    return tmp_path / "run"


@pytest.mark.sweep(4)
@pytest.mark.parametrize("how", ["failed", "answered", "silent", "interrupted"])
@pytest.mark.parametrize("moment", range(len(EXCHANGES)))
def test_a_run_that_stops_states_what_whoever_met_most_has_met(tmp_path, monkeypatch, moment, how):
    folder = stopped(tmp_path, monkeypatch, moment, how)
    least = max(met(moment + 1)) * (1 - 1e-6)
    promised, result = (json.loads((folder / f"{name}.json").read_text()) for name in ("guarantee", "result"))
    assert "error" in result
    assert promised["spent_epsilon"] == promised["epsilon"] == result["guarantee"]["epsilon"] >= least
    assert promised["held_out_spent_epsilon"] == pytest.approx(met(moment + 1)[1], rel=1e-6)
    assert f"({shown_claim(promised['epsilon'])}, " in promised["sentence"]
    assert _ending(folder).metrics["epsilon"] == promised["epsilon"]
    rounds = pd.read_parquet(folder / "rounds.parquet")
    done = sum(kind == TRAIN for kind, _ in EXCHANGES[: moment + 1]) - (moment < 4)
    assert len(rounds) == done
    for number, spent in zip(rounds["round"], rounds["spent_epsilon"], strict=True):
        assert spent >= max(met(2 * number)) * (1 - 1e-6)


def test_held_out_users_who_have_met_more_than_those_who_train_set_what_is_stated(tmp_path, monkeypatch):
    """Before a long plan they are asked for the sizes of losses, and pay more than for its first rounds."""
    raw = tomllib.loads(config_of(table(tmp_path / "table.csv"), tmp_path, {"rounds": 40}).toml())
    raw["problem"] = {"kind": "squared"}
    raw["data"]["target_range"] = [0.0, 1.0]
    with monkeypatch.context() as patch:
        stopping(patch, 1, "silent")
        with pytest.raises(RunFailed):
            run(parse_config(raw), directory=tmp_path / "run", report=False)
    promised = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    multiplier = calibrate_noise(4.0, 1e-3, 1)
    trained, held_out = (epsilon_of(Cost(multiplier / share**0.5), 1, 1e-3) for share in (1 / 40, 0.05))
    assert promised["epsilon"] == promised["spent_epsilon"] == promised["held_out_spent_epsilon"]
    assert promised["epsilon"] >= held_out * (1 - 1e-6) > trained


def test_pages_copies_and_cards_of_a_run_that_stopped_state_the_same(tmp_path, monkeypatch):
    folder = stopped(tmp_path, monkeypatch, 3, "failed", noise="secure")
    promised = json.loads((folder / "guarantee.json").read_text())
    assert promised["epsilon"] >= max(met(4)) * (1 - 1e-6)
    copy_released(folder, tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "guarantee.json").read_text()) == promised
    assert json.loads((tmp_path / "copy" / "result.json").read_text())["guarantee"]["epsilon"] == promised["epsilon"]
    for text in (page(folder), (tmp_path / "copy" / "report.html").read_text()):
        assert f"epsilon = {shown_claim(promised['epsilon'])}, delta" in text
    [stated] = [line["value"] for part in card(folder)["parts"] for line in part["lines"] if line["name"] == "Epsilon"]
    assert stated == promised["epsilon"]


def least(promised):
    """Return the smallest epsilon that a written promise states."""
    return min(promised[name] for name in ("epsilon", "spent_epsilon", "held_out_spent_epsilon"))


def killed(tmp_path, monkeypatch, checkpoint):
    """Leave the folder of a run whose process was killed at its third moment, and return the run's configuration."""
    config = config_of(table(tmp_path / "table.csv"), tmp_path / "runs", STRATEGY)
    with monkeypatch.context() as patch:
        patch.setattr("simulations.runs.folder.RunFolder.finish", lambda *_: None)  # as kill -9 leaves it
        stopping(patch, 2, "failed")
        with pytest.raises(RunFailed):
            run(config, directory=tmp_path / "run", checkpoint=checkpoint, report=False)
    return config


def test_a_run_under_way_states_its_whole_plan_because_a_killed_one_writes_nothing_more(tmp_path, monkeypatch):
    kept, write = [], RunDirectory.progress

    def written(files, *given, now=False, **more):
        write(files, *given, now=True, **more)
        kept.append(json.loads((files.path / "guarantee.json").read_text()))

    monkeypatch.setattr(RunDirectory, "progress", written)
    config = config_of(table(tmp_path / "table.csv"), tmp_path / "runs", STRATEGY)
    run(config, directory=tmp_path / "run", report=False)
    assert len(kept) == 3
    assert min(map(least, kept)) >= 4.0 - 1e-6


def test_a_resumed_run_that_stops_states_its_whole_plan(tmp_path, monkeypatch):
    """The killed process may have asked more than its last checkpoint tells."""
    config = killed(tmp_path, monkeypatch, checkpoint=True)
    for moment in (0, 1):
        with monkeypatch.context() as patch:
            stopping(patch, moment, "failed")
            with pytest.raises(RunFailed):
                run(config, directory=tmp_path / "run", resume=True, report=False)
        assert least(json.loads((tmp_path / "run" / "guarantee.json").read_text())) >= 4.0 - 1e-6


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_resumed_run_that_stops_before_it_has_nodes_states_its_whole_plan(checkpoint, tmp_path, monkeypatch):
    """Whoever kept a checkpoint, or with seeded noise none at all, had answers that this process never saw."""
    config = killed(tmp_path, monkeypatch, checkpoint)

    def no_grid(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("simulations.runs.run.make_grid", no_grid)
    with pytest.raises(KeyboardInterrupt):
        run(config, directory=tmp_path / "run", resume=True, report=False)
    promised = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert promised["holds"]
    assert least(promised) >= 4.0 - 1e-6

"""The apps keep the rules of Flower's hub and its baselines, and run in this process."""

import io
import json
import re
import tomllib
import zipfile

import app_results
import numpy as np
import pandas as pd
import pytest
from app_results import APPS, ROOT, defaults, part, project, run_here
from examples import SHIPPED
from flwr.app import Context, RecordDict
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_description, _validate_files
from flwr.cli.build import build_fab_from_disk
from flwr.cli.utils import validate_project_name
from flwr.common.config import parse_config_args
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from helpers_flower import ClientGrid

from simulations.config.keys import keys
from simulations.config.run_config import load_config
from simulations.runs.run import run
from strategies import client_app
from userdp.accounting import Guarantee
from userdp.errors import BadInput, RunFailed
from userdp.queries import table_query

EVERY = pytest.mark.parametrize("app", APPS)
OWN = pytest.mark.parametrize("app", [app for app in APPS if app != "userdp-run"])
"""Apps with a problem, data and a strategy of their own."""
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # of Flower's own
ALLOWED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
SMALL = {"num-users": 40, "num-server-rounds": 2, "delta": 1e-3}
FEWER = {"userdp-torch": {"num-users": 4}}
"""Settings of apps in which each node is one user."""
SMALL_RUN = {"set.data.users": 400, "set.data.test_users": 50, "set.output.anyway": True, "set.output.reference": False}


def files(app):
    """All files of an app but those that tests and tools leave there and git does not keep."""
    found = [path for path in APPS[app].rglob("*") if path.is_file()]
    return [path for path in found if not {"__pycache__", ".ruff_cache"} & set(path.parts)]


def test_there_are_five_apps():
    assert list(APPS) == ["userdp-query", "userdp-quickstart", "userdp-run", "userdp-silos", "userdp-torch"]


@EVERY
def test_files_are_few_small_and_of_kinds_that_the_hub_takes(app):
    assert all(path.suffix in ALLOWED or path.name == "LICENSE" for path in files(app))
    sizes = [path.stat().st_size for path in files(app)]
    assert max(sizes) <= 1 << 20
    assert sum(sizes) <= 10 << 20
    assert (APPS[app] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files(app) if path.suffix == ".py"]
    assert sum(lines) <= 150
    _validate_files(_collect_file_paths(APPS[app]))


@EVERY
def test_metadata_are_those_that_the_hub_asks_for(app):
    metadata = project(app)
    flower = metadata["tool"]["flwr"]["app"]
    assert metadata["project"]["name"] == app
    validate_project_name(app, "name")
    _validate_description(metadata["project"]["description"])
    assert len(metadata["project"]["description"]) <= 200
    assert metadata["project"]["license"] == {"file": "LICENSE"}
    assert (flower["publisher"], flower["fab-format-version"], flower["flwr-version-target"]) == ("userdp", 1, "1.41.0")
    assert normalize_and_validate_fab_format(metadata).flwr_version_min == "1.41"
    assert all(isinstance(value, str | int | float) for value in defaults(app).values())
    wanted = {"epsilon", "delta", "output", "roster_timeout"}
    if app not in ("userdp-query", "userdp-run"):
        wanted |= {"num-server-rounds", "clip-norm", "learning-rate", "num-users"}
    assert wanted <= flower["config"].keys()
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    theirs = [line for line in metadata["project"]["dependencies"] if not line.startswith("userdp")]
    assert not set(theirs) - set(ours)


@EVERY
def test_the_bundle_holds_every_file(app):
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APPS[app]))) as bundle:
        inside = set(bundle.namelist()) - {".info/CONTENT"}
    assert inside == {path.relative_to(APPS[app]).as_posix() for path in files(app)}


@EVERY
def test_readmes_say_how_to_run_and_every_setting(app):
    page = (APPS[app] / "README.md").read_text(encoding="utf-8")
    for heading in ("## Simulation", "## Deployment", "## Expected results", "- **SuperNodes**", "- **Data**"):
        assert heading in page
    settings = page.partition("## Settings")[2]
    assert not [key for key in defaults(app) if f"`{key}`" not in settings]


@EVERY
def test_tables_of_results_have_the_rows_that_the_command_makes(app):
    results = app_results.results_of(app)
    assert list(results) == [app_results.told(changes) for changes in app_results.ROWS[app]]
    assert all(low <= median <= high for median, low, high in results.values())


@pytest.mark.slow
@EVERY
def test_tables_of_results_are_those_of_runs(app):
    """Noise without a seed moves the accuracy at the defaults by less than a hundredth."""
    median, low, high = app_results.results_of(app)["the defaults"]
    assert high - low < 0.03
    assert app_results.measured(app, {}) == pytest.approx(median, abs=0.05)


# In this process -----------------------------------------------------------------------------------------------------


@OWN
def test_an_app_prints_its_guarantee_and_writes_it(app, tmp_path, capsys):
    run_here(app, 2 if app != "userdp-torch" else 4, SMALL | FEWER.get(app, {}) | {"output": str(tmp_path)})
    guarantee = Guarantee.from_dict(json.loads((tmp_path / "guarantee.json").read_text()))
    assert guarantee.holds
    assert (guarantee.unit, guarantee.delta) == ("user", 1e-3)
    assert guarantee.epsilon == pytest.approx(defaults(app)["epsilon"], rel=1e-3)
    assert str(guarantee) in capsys.readouterr().out
    assert ("sees the noisy sum over all nodes" in guarantee.adversary) == (app == "userdp-silos")


# userdp-query: statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", ["server", "sum"])
def test_answers_are_near_those_of_the_whole_table(tmp_path, capsys, trust):
    """The noise of epsilon 50 on 600 people moves a mean by less than a hundredth of its range."""
    changes = {"num-users": 600, "epsilon": 50.0, "delta": 1e-3, "trust": trust, "output": str(tmp_path)}
    run_here("userdp-query", 3, changes)
    people = part("userdp-query", "task").draw_silo(600, 0, 1)[0]
    own = people.groupby("person").agg({"age": "mean", "wait": "mean", "ward": "first"})
    found = pd.read_csv(tmp_path / "answers.csv").set_index(["statistic", "level"])["estimate"]
    assert found["counts", "north"] == pytest.approx((own["ward"] == "north").sum(), abs=6)
    assert found["mean"].item() == pytest.approx(own["age"].mean(), abs=0.8)
    assert found["group_means", "south"] == pytest.approx(own.groupby("ward")["wait"].mean()["south"], abs=2.4)
    assert ("quantiles" in found.index) == (trust == "server")
    assert "counts ward north: " in capsys.readouterr().out
    guarantee = Guarantee.from_dict(json.loads((tmp_path / "guarantee.json").read_text()))
    assert ("sees the noisy sum over all nodes" in guarantee.adversary) == (trust == "sum")


@pytest.mark.parametrize(
    ("one", "told"),
    [
        ({"statistic": "average", "of": "age"}, "ask 1: statistic = 'average' is unknown; there are count, mean"),
        ({"of": "age"}, "ask 1: statistic = None is unknown"),
        ({"statistic": "mean", "of": "age", "bins": 3}, "ask 1: bins: "),
        ({"statistic": "mean", "of": "ages"}, "of = 'ages': there is no such column"),
    ],
)
def test_questions_that_cannot_be_meant_are_refused(one, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        table_query([one], **part("userdp-query", "task").COLUMNS)


@pytest.mark.parametrize(
    ("more", "told"),
    [({"relation": "replace-one"}, "relation = 'replace-one': must be"), ({"max_samples": 0}, "max_samples = 0: must")],
)
def test_relations_and_limits_that_do_not_exist_are_refused(more, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        table_query([{"statistic": "quantiles", "of": "wait"}], **part("userdp-query", "task").COLUMNS, **more)


# userdp-run: any configuration ----------------------------------------------------------------------------------------


def asked(tmp_path, **changes):
    """The configuration of the run that the app makes of a run-config."""
    run_here("userdp-run", 3, SMALL_RUN | changes | {"output": str(tmp_path / "run")})
    return load_config(tmp_path / "run" / "config.toml")


def test_keys_of_the_run_config_change_the_files(tmp_path, caplog):
    caplog.set_level("INFO", "userdp")
    flat = {"set.strategy.kind": "dp_fed_sgd", "set.strategy.rounds": 2, "set.strategy.clip_norm": 2.5}
    config = asked(tmp_path, epsilon=1, delta=1e-5, seed=7, roster_timeout=5.0, **flat)
    assert (config.privacy.epsilon, config.privacy.delta, config.seed) == (1.0, 1e-5, 7)
    assert (config.strategy.kind, config.strategy.rounds, config.strategy.clip_norm) == ("dp_fed_sgd", 2, 2.5)
    assert (config.engine.roster_timeout, config.name) == (5.0, "quickstart")
    guarantee = Guarantee.from_dict(json.loads((tmp_path / "run" / "guarantee.json").read_text()))
    assert str(guarantee) in caplog.text
    here = run(config, directory=tmp_path / "here", report=False)
    with np.load(tmp_path / "run" / "model.npz") as model:
        np.testing.assert_allclose(model["x"], here.model, rtol=1e-9, atol=1e-12)


def test_empty_keys_leave_the_files_values(tmp_path):
    plain = load_config(SHIPPED["quickstart"])
    assert asked(tmp_path).privacy == plain.privacy


def test_the_text_of_a_configuration_replaces_a_file_and_is_changed_too(tmp_path):
    text = SHIPPED["robust-mean"].read_text(encoding="utf-8")
    config = asked(tmp_path, settings=text, config="nowhere.toml", epsilon=9.0)
    assert (config.name, config.privacy.epsilon) == ("robust-mean", 9.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"set.strategy.clip_nrm": 1.0}, "clip_nrm"),
        ({"set.no.such": "x"}, "no"),
        ({"epsilon": "much"}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"config": "nowhere.toml"}, "does not exist"),
    ],
)
def test_keys_that_cannot_be_meant_are_refused(tmp_path, changes, told):
    with pytest.raises(BadInput, match=told):
        asked(tmp_path, **changes)
    assert not (tmp_path / "run").exists()


def test_every_key_to_set_is_one_of_a_configuration():
    names = {key.name for key in keys()}
    assert {key[4:] for key in defaults("userdp-run") if key.startswith("set.")} <= names


@pytest.mark.parametrize("app", ["userdp-quickstart", "userdp-torch"])
def test_an_unknown_strategy_is_refused(app):
    with pytest.raises(BadInput, match="strategy = 'best': must be "):
        run_here(app, 2, SMALL | {"strategy": "best"})


def test_the_quickstart_trains_without_settings(capsys):
    run_here("userdp-quickstart", 2, SMALL | {"strategy": "auto", "epsilon": 20.0})
    assert "(20, 0.001)-differential privacy for replacing one whole user" in capsys.readouterr().out


@pytest.mark.parametrize("app", ["userdp-query", "userdp-quickstart", "userdp-silos"])
def test_noise_has_no_seed(app):
    privacy = part(app, "server_app").make_strategy(defaults(app)).privacy
    assert privacy.noise == "secure"
    assert privacy.trust == ("sum" if app == "userdp-silos" else "server")


# Files of nodes ------------------------------------------------------------------------------------------------------


def run_stored(app, configs, changes=None):
    """Run it with the node-configs of a deployment."""
    run_config = defaults(app) | SMALL | (changes or {})
    node_configs = [parse_config_args([config]) for config in configs]
    with ClientGrid(part(app, "client_app").app, len(configs), run_config, node_configs) as grid:
        part(app, "server_app").app(grid, Context(1, 0, {}, RecordDict(), run_config))


@OWN
def test_demo_data_are_what_a_deployed_node_reads(app, tmp_path, capsys):
    people = (4,) if app == "userdp-torch" else (2, 40)
    configs = part(app, "demo").write(tmp_path, *people)
    run_stored(app, configs, FEWER.get(app))
    assert "differential privacy for replacing one whole user" in capsys.readouterr().out


@pytest.mark.parametrize("app", ["userdp-query", "userdp-silos"])
def test_a_person_in_two_silos_is_refused(tmp_path, app):
    configs = part(app, "demo").write(tmp_path, 2, 40)
    path = tmp_path / "silo-2.csv"
    path.write_text(path.read_text().replace("insured-000020", "insured-000003"))
    with pytest.raises(RunFailed, match="one person in two places has no guarantee"):
        run_stored(app, configs)


def test_numbers_that_two_silos_claim_are_refused(tmp_path):
    configs = part("userdp-silos", "demo").write(tmp_path, 2, 40)
    with pytest.raises(RunFailed, match="claim"):
        run_stored("userdp-silos", [configs[0], configs[1].replace("first-user=20", "first-user=19")])


def test_a_simulated_silo_holds_the_people_of_the_whole_table():
    task = part("userdp-silos", "task")
    whole, _ = task.draw_silo(30, 0, 1)
    parts = [task.draw_silo(30, silo, 4) for silo in range(4)]
    assert [first for _, first in parts] == [0, 8, 16, 23]
    assert pd.concat([table for table, _ in parts]).equals(whole)
    labels = [label for silo in range(4) for label in task.simulated_silo(30, silo, 4).labels]
    assert len(set(labels)) == len(labels) == 30


def test_silos_must_say_who_their_people_are(tmp_path, monkeypatch):
    configs = part("userdp-silos", "demo").write(tmp_path, 2, 40)
    node = part("userdp-silos", "task").load_node

    def silent(context):
        monkeypatch.setattr(found := node(context), "labels", None)
        return found

    with ClientGrid(client_app(silent), 2, None, [parse_config_args([config]) for config in configs]) as grid:
        run_config = defaults("userdp-silos") | SMALL
        with pytest.raises(RunFailed, match="does not say who its users are"):
            part("userdp-silos", "server_app").app(grid, Context(1, 0, {}, RecordDict(), run_config))


@OWN
def test_the_readmes_node_configs_are_those_of_its_demo_data(app, tmp_path):
    page = (APPS[app] / "README.md").read_text(encoding="utf-8")
    ((folder, numbers),) = re.findall(r"^python -m userdp_\w+\.demo (\S+) ([\d ]+)$", page, re.MULTILINE)
    made = part(app, "demo").write(tmp_path, *map(int, numbers.split()))
    assert re.findall(r"--node-config '(.+)'", page) == [config.replace(str(tmp_path), folder) for config in made]

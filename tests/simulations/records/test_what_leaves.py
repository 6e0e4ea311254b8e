"""The files that leave a run: two runs that differ in one person's data, file by file against the list of fields."""

import json
import re
import shutil
import tomllib
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from any_strategy import options_of
from examples import COMPARISON, broken, call, changed

import simulations.runs.trackers
from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare
from simulations.config.run_config import parse_config
from simulations.records import released_fields
from simulations.records.checkpoints import Checkpoints
from simulations.records.released_fields import (
    KINDS,
    RELEASED,
    SHARED,
    all_fields,
    field_of,
    is_private,
    kept,
)
from simulations.records.run_directory import ASKED, CHECKPOINT, FILES
from simulations.reports.explain import shown
from simulations.reports.report import copy_released
from simulations.runs.build import load_datasets, make_strategy, public_facts, starting_problem
from simulations.runs.run import run
from strategies import STRATEGIES
from strategies.baselines.samples.sample_options import SampleLevelOptions
from userdp.errors import BadInput, RunFailed
from userdp.noise import Scores, SecureNoise, SeededNoise
from userdp.snapshots import Snapshot

USERS, ROWS = 320, 2
DECLARES_SAMPLES = {name for name, strategy in STRATEGIES.items() if issubclass(strategy, SampleLevelOptions)}
"""Strategies that need the public number of samples."""
NOISE_ELSEWHERE = {"local_dp", "dp_ftrl"}
"""Strategies whose simulated noise is not added by `SeededNoise`; their secure noise is added by `SecureNoise`."""
WORST_CELLS = [1e9, -1e9, np.nan, np.inf]
"""The neighbour's cells, out of the declared range."""
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


def write(path, *, worst_user=None, fewer_of=None):
    """A table of 400 people of two rows; one of them with one row, or with the worst cells and 40 rows more."""
    rng = np.random.default_rng(0)
    numbers = {name: rng.uniform(-most, most, 400 * ROWS) for name, most in (("a", 0.5), ("b", 0.5), ("y", 1.0))}
    table = pd.DataFrame({"who": np.repeat([f"user{i:03d}" for i in range(400)], ROWS)} | numbers)
    if fewer_of is not None:
        table = table.drop(index=table.index[table["who"] == fewer_of][1:])
    if worst_user is not None:
        own = table[table["who"] == worst_user]
        more = pd.concat([own] + [own.iloc[:1]] * 40, ignore_index=True)
        more[["a", "b", "y"]] = np.resize(WORST_CELLS, (len(more), 3))
        table = pd.concat([table[table["who"] != worst_user], more], ignore_index=True)
    table.to_csv(path, index=False)


def configuration(name, path, *, noise="seeded", trackers=()):
    data = {"kind": "table", "path": str(path), "user": "who", "users": USERS, "max_samples": ROWS}
    data |= {"features": ["a", "b"], "ranges": {"a": [-1.0, 1.0], "b": [-1.0, 1.0]}}
    problem: dict[str, Any] = {"radius": 2.0, **STRATEGIES[name].about.example_problem}
    if problem["kind"] != "quadratic":
        data |= {"target": "y", "target_range": [-1.0, 1.0]}
    if name in DECLARES_SAMPLES:
        data["samples"] = USERS * ROWS
    raw = changed(
        problem=problem,
        data=data,
        privacy={"epsilon": 8.0, "delta": 1e-3, "noise": noise},
        strategy={"kind": name, **options_of(name)},
        output={"trackers": list(trackers), "anyway": True, "private_figures": True},
    )
    config = parse_config(raw)
    if make_strategy(config, starting_problem(config), public_facts(config)).plan.guarantee.users_come_and_go:
        places = {name: value for name, value in data.items() if name != "users"} | {"all_users": 400}
        config = parse_config(raw | {"data": places})
    return config


def training_user(config, path):
    first = load_datasets(config).users.block(np.array([0])).features[0, 0]
    table = pd.read_csv(path)
    return table["who"][(table["a"] - first).abs().idxmin()]


def neighbours(name, folder, go):
    """The results of ``go`` on two tables that differ in one training user, written to the same place."""
    path = folder / "t.csv"
    write(path)
    who = training_user(configuration(name, path), path)
    # Where the number of samples is not declared, it differs, too.
    write(path, fewer_of=None if name in DECLARES_SAMPLES else who)
    first = go(path)
    write(path, worst_user=who)
    return first, go(path)


def fields_in(values, path=""):
    """Path with dots -> value, of all that is no table; lists and empty tables are values."""
    if not isinstance(values, dict) or (path and not values):
        return {path: values}
    found = {}
    for name, inner in values.items():
        found |= fields_in(inner, f"{path}.{name}" if path else str(name))
    return found


def read(directory):
    """(file, path of a field) -> its value, of everything but the page, the arrays as lists."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.suffix == ".json":
            values = json.loads(path.read_text())
        elif path.suffix == ".toml":
            values = tomllib.loads(path.read_text())
        elif path.suffix == ".parquet":
            values = pd.read_parquet(path).to_dict("list")
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                values = {key: array.tolist() for key, array in arrays.items()}
        else:
            continue
        found |= {(path.name, key): repr(value) for key, value in fields_in(values).items()}
    return found


def differing(first, second):
    """(file, path) -> kind, of the fields that two runs do not share; every field of both has to be listed."""
    assert first.keys() == second.keys()
    kinds = {key: field_of(*key).kind for key in first}
    for (file, path), kind in kinds.items():
        assert is_private(path) == (kind == "private"), (file, path)
    return {key: kind for key, kind in kinds.items() if first[key] != second[key]}


class Told:
    def __init__(self, directory, parameters):
        self.fields = {("tracker", f"parameters.{key}"): repr(value) for key, value in parameters.items()}
        self.files = {}

    def round(self, number, values):
        for key, value in values.items():
            self.fields["tracker", key] = self.fields.get(("tracker", key), "") + repr((number, value))

    def finish(self, ending):
        self.fields |= {("tracker", key): repr(value) for key, value in {**ending.metrics, **ending.texts}.items()}
        self.files = ending.files


def drown(monkeypatch):
    """Noise so large that what it is added to cannot be seen: what is released is the noise alone."""
    for method in ("gaussian", "laplace", "choose"):
        original = getattr(SeededNoise, method)

        def alone(self, value, scale, original=original, **law):
            nothing = Scores(np.zeros(np.shape(value.values)), 1.0) if isinstance(value, Scores) else 0 * value
            return original(self, nothing, scale, **law)

        monkeypatch.setattr(SeededNoise, method, alone)
    monkeypatch.setattr(SecureNoise, "gaussian", lambda self, value, scale: np.full(np.shape(value), scale))


# Two neighbours ----------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@each_strategy
def test_what_is_public_does_not_depend_on_a_persons_data(tmp_path, name):
    output = parse_config(changed(output={"reference": False, "anyway": True})).output

    def go(path):
        config = configuration(name, path).model_copy(update={"output": output})
        return read(run(config, directory=tmp_path / "run", report=False).directory)

    different = differing(*neighbours(name, tmp_path, go))
    assert "public" not in different.values(), different
    # The neighbour is one, and the counts say so.
    assert ("data.json", "table_private.rows") in different
    assert (("result.json", "samples_private") in different) == (name not in DECLARES_SAMPLES)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "non_private"])
def test_what_is_not_private_is_a_function_of_what_was_released(tmp_path, monkeypatch, name):
    """The noise alone is released: nothing differs but what is marked as private."""
    told = []

    def note(directory, parameters):
        told.append(Told(directory, parameters))
        return told[-1]

    noise = "secure" if name in NOISE_ELSEWHERE else "seeded"
    monkeypatch.setattr(simulations.runs.trackers, "TRACKERS", {"mlflow": ("json", note)})
    monkeypatch.setattr("simulations.account.entering.check_no_release", lambda path, **_: None)
    drown(monkeypatch)

    def go(path):
        config = configuration(name, path, noise=noise, trackers=["mlflow"])
        directory = run(config, directory=tmp_path / "run").directory
        return read(directory), (directory / "report.html").read_text()

    (first, page), (second, other) = neighbours(name, tmp_path, go)
    assert set(differing(first, second).values()) <= {"private", "environment"}
    assert (("result.json", "reference_private.non_private.test_loss") in first) == (noise == "seeded")
    assert without_private(page) == without_private(other)
    assert page != other
    assert set(differing(*(one.fields for one in told)).values()) <= {"environment"}
    for one in told:
        assert set(one.files) == {"result.json", "report.html"}
        assert not [key for key in fields_in(json.loads(one.files["result.json"])) if is_private(key)]
        assert 'id="figures_private"' not in one.files["report.html"]


def without_private(page):
    """A report without its private section and without the seconds and memory that the run took."""
    rest, sections = re.subn(r'<section class="private".*?</section>', "", page, flags=re.DOTALL)
    assert sections == 1
    return re.sub(r"The run took .*? MiB\.", "", rest)


# The list ----------------------------------------------------------------------------------------------------------


def test_every_field_of_every_file_is_listed_once_and_its_name_says_whether_it_is_private():
    assert not [key for key, times in Counter((field.file, field.name) for field in all_fields()).items() if times > 1]
    for field in all_fields():
        assert field.kind in KINDS
        assert is_private(field.name) == (field.kind == "private"), field
        assert field.told
    assert set(FILES) <= {field.file for field in all_fields()}


def test_files_that_trackers_get_unchanged_hold_no_private_field():
    files = simulations.runs.trackers.ARTIFACTS
    assert {field.file for field in all_fields()} >= set(files)
    assert {field.kind for field in all_fields() if field.file in files} <= set(SHARED)


def test_a_field_that_nobody_listed_stays_at_home():
    values = {"metrics": {"test_loss": 1.0}, "median_height": 178.0, "seed": 3, "table_private": {"rows": 5}}
    values |= {"seed_by_ward": 4, "users_by_ward": {"a": 5}}  # whatever their names begin with
    assert kept("result.json", values, SHARED) == {"metrics": {"test_loss": 1.0}, "seed": 3}
    assert kept("result.json", values, RELEASED) == {"seed": 3}
    with pytest.raises(LookupError, match=r"median_height is not in simulations/records/released_fields.toml"):
        field_of("result.json", "median_height")


@pytest.mark.slow
def test_every_field_of_a_comparison_is_listed(tmp_path):
    raw = COMPARISON | {"seeds": 1, "strategy": COMPARISON["strategy"][::2]}
    folder = compare(parse_comparison(raw), workers=0, directory=tmp_path / "c").directory
    for path in [*folder.rglob("*.json"), *folder.rglob("*.parquet")]:
        own = path.parent == folder or path.name == "cell.json"
        file = f"comparison: {path.name}" if own else path.name
        values = json.loads(path.read_text()) if path.suffix == ".json" else pd.read_parquet(path).to_dict("list")
        for name in fields_in(values):
            assert is_private(name) == (field_of(file, name).kind == "private"), (file, name)


def test_sentences_of_a_failed_run_hold_no_counts(tmp_path, monkeypatch, caplog):
    """One node of eight fails: how many people it holds is for the holder of the data alone."""
    broken(monkeypatch, lambda node, x: node.users[0] == 0)
    raw = changed(data__users=203, strategy__max_missing=0.01, privacy__delta=1e-4)
    with pytest.raises(RunFailed) as failed:
        run(parse_config(raw), directory=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for sentence in (str(failed.value), result["error"], *caplog.messages):
        assert not re.search(r"\b(26|177|203)\b", sentence)
    assert "strategy.max_missing = 0.01" in result["error"]


# A copy for others -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    raw = changed(strategy={"kind": "robust_rounds", "rounds": 2, "deviation": 1.0}, data__users=1000)
    return run(parse_config(raw), directory=tmp_path_factory.mktemp("released") / "run").directory


def test_a_copy_for_others_holds_what_the_guarantee_covers_and_nothing_else(tested, tmp_path):
    copied = copy_released(tested, tmp_path / "copy").parent
    assert {path.name for path in copied.iterdir()} == set(FILES)
    whole, fields = read(tested), read(copied)
    assert fields == {key: value for key, value in whole.items() if field_of(*key).kind in RELEASED}
    assert {kind for key in whole if (kind := field_of(*key).kind) not in RELEASED} == {
        "private",
        "held-out",
        "environment",
    }
    page = (copied / "report.html").read_text()
    assert "epsilon = " in page
    assert "figures_private" not in page
    for key in set(whole) - set(fields):
        value = json.loads(whole[key]) if re.fullmatch(r"[\d.]+", whole[key]) else None
        assert not isinstance(value, float) or shown(value) not in page


@pytest.mark.slow
def test_the_copy_for_others_is_made_from_the_command_line(tested, tmp_path):
    done, again = (call("report", tested, "--released", tmp_path / "copy") for _ in range(2))
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "copy" / "report.html"))
    assert again.exit_code == 2
    assert "must be a new or an empty folder" in again.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("guarantee.json", '"holds": true', '"holds": false'), "promises no privacy"),
        (("config.toml", 'kind = "synthetic"', 'kind = "table"'), "anybody who guesses the seed can remove the noise"),
        (("result.json", None, None), "holds no result.json: give the directory of a run that has ended"),
    ],
    ids=["no promise", "seeded noise on a table", "unfinished"],
)
def test_what_must_not_be_handed_on_is_refused(tested, tmp_path, change, told):
    file, old, new = change
    own = shutil.copytree(tested, tmp_path / "run")
    if old is None:
        (own / file).unlink()
    else:
        text = (own / file).read_text()
        assert old in text
        (own / file).write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=told):
        copy_released(own, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_checkpoints_hold_nothing_under_another_name(tmp_path):
    taken = Snapshot()
    taken.add("round", 1)
    taken.add("x", np.zeros(2))
    keeper = Checkpoints(tmp_path, parse_config(changed()))
    keeper.keep(lambda: taken, must=True)
    keeper.ask(taken)
    for name in (CHECKPOINT, ASKED):
        with np.load(tmp_path / name) as archive:
            assert {field_of(name, key).kind for key in archive.files} == {"private"}


def test_two_strategies_declare_a_fact_of_one_name_alike(monkeypatch):
    """Else the kind of the one would let the other's values leave."""
    noised, private = (SimpleNamespace(kind=kind, meaning="a sum") for kind in ("noised", "private"))
    declared = {"A": {"sum": noised}, "B": {"sum": noised}, "C": {"sum": private}}
    monkeypatch.setattr(released_fields, "notes_of", lambda one: declared[one.__name__])
    for names, fits in (("AB", True), ("ABC", False)):
        kinds = SimpleNamespace(loaded=lambda names=names: ({name: type(name, (), {}) for name in names}, {}))
        monkeypatch.setattr(released_fields, "STRATEGIES", kinds)
        with nullcontext() if fits else pytest.raises(ValueError, match="another strategy declares 'sum'"):
            assert [field.kind for field in released_fields._facts()] == ["noised"]

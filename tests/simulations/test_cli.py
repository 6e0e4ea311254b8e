import json
import logging
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from unittest.mock import Mock

import pytest
import typer
from examples import BASE, call, changed, table_section, write_table
from rich.console import Console
from typer.testing import CliRunner

import simulations.reports.progress
import simulations.runs.run
from simulations import terminal
from simulations.cli import app
from simulations.config.keys import explained
from simulations.config.run_config import load_config, parse_config
from simulations.reports.progress import progress_bar
from strategies.registry import STRATEGIES
from userdp.data import POPULATIONS, PUBLIC_DATASETS
from userdp.errors import BadInput, RunFailed
from userdp.problems import Quadratic
from userdp.problems.registry import PROBLEMS

LOG_WARNINGS = terminal.log_warnings
VERBS = typer.main.get_command(app).commands


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    # A handler that outlives its test would write to a stream that is closed by then.
    monkeypatch.setattr(terminal, "log_warnings", lambda: None)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(parse_config(BASE).toml(), encoding="utf-8")
    return path


@pytest.mark.slow
def test_run_writes_its_directory_and_tells_what_matters(config, tmp_path):
    outcome = call("run", config, "--output", tmp_path / "runs", "--seed", 8)
    assert outcome.exit_code == 0, outcome.stderr
    directory = tmp_path / "runs" / "small-dp_fed_sgd-seed8"
    assert json.loads((directory / "result.json").read_text())["seed"] == 8
    promised = json.loads((directory / "guarantee.json").read_text())["assumptions"]
    assert outcome.stdout.count("assuming: ") == len(promised) > 0
    for told in ("Guarantee.", "excess risk", "initial model", str(directory / "report.html")):
        assert told in outcome.stdout


def test_run_with_json_prints_the_result_and_nothing_else(config, tmp_path, monkeypatch):
    original = simulations.runs.run.run

    def chatty(*arguments, **settings):
        print("a library that prints")
        return original(*arguments, **settings)

    monkeypatch.setattr(simulations.runs.run, "run", chatty)
    outcome = call("run", config, "--json", "--output", tmp_path / "runs", "--set", "privacy.epsilon=2")
    assert outcome.exit_code == 0
    directory = tmp_path / "runs" / "small-dp_fed_sgd-seed3"
    assert json.loads(outcome.stdout) == json.loads((directory / "result.json").read_text())
    assert json.loads(outcome.stdout)["guarantee"]["epsilon"] <= 2.0
    assert "a library that prints" in outcome.stderr


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_simulation_tells_what_became_of_the_cells_of_its_table_and_a_release_does_not(tmp_path, noise):
    data = table_section(
        write_table(tmp_path / "t.csv"),
        ranges={"height": [150.0, 160.0]},
        categorical={"team": ["red"]},
        test_fraction=0.0,
    )
    raw = changed(problem={"kind": "logistic"}, data=data, privacy__noise=noise, output={"reference": False})
    path = tmp_path / "run.toml"
    path.write_text(parse_config(raw).toml(), encoding="utf-8")
    outcome = call("run", path, "--output", tmp_path / "runs")
    assert outcome.exit_code == 0, outcome.stderr
    shown = re.sub(r"\s+", " ", outcome.stdout)
    told = ["private: exact counts, not covered by the guarantee", "cells clipped at loading", "of 240)", "(team: "]
    assert [one in shown for one in told] == [noise == "seeded"] * 4


@pytest.mark.parametrize(("noise", "wanted"), [("seeded", None), ("seeded", False), ("secure", None), ("secure", True)])
def test_private_figures_are_shown_of_simulations_and_where_they_are_asked_for(config, tmp_path, noise, wanted):
    given = ["--set", f"privacy.noise={noise}", "--set", "output.reference=false"]
    given += [] if wanted is None else ["--set", f"output.private_figures={str(wanted).lower()}"]
    outcome = call("run", config, "--json", "--output", tmp_path / "runs", *given)
    assert outcome.exit_code == 0, outcome.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    shown = noise == "seeded" if wanted is None else wanted
    printed, written = json.loads(outcome.stdout), json.loads((directory / "result.json").read_text())
    private = [name for name in written if name.endswith("_private")]
    assert private
    assert [name in printed for name in private] == [shown] * len(private)
    assert {name: written[name] for name in printed} == printed
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert ("figures_private" in page) == shown


@pytest.mark.slow
def test_a_run_worse_than_nothing_says_so(config, tmp_path):
    refused = call("run", config, "--output", tmp_path, "--set", "privacy.epsilon=0.01")
    assert refused.exit_code == 2
    assert "Doing nothing is better than this run" in refused.stderr
    outcome = call("run", config, "--output", tmp_path, "--set", "privacy.epsilon=0.01", "--anyway")
    assert outcome.exit_code == 0
    assert "WORSE than the initial model" in outcome.stdout


def test_plan_shows_numbers_guarantee_and_warnings_without_a_run(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = call("plan", config, "--set", "privacy.epsilon=0.01", "--set", "strategy.rounds=200")
    assert outcome.exit_code == 0
    for told in ("noise_multiplier", "users_needed", "Guarantee.", "assuming:", "Warning."):
        assert told in outcome.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_plan_with_json_prints_every_number(config):
    values = json.loads(call("plan", config, "--json").stdout)
    assert values["users"] == 400
    assert values["guarantee"]["holds"]
    assert values["numbers"]["clip_norm"] == 1.0
    tested = ["plan", config, "--set", 'strategy={kind="robust_rounds", rounds=1, deviation=1.0}']
    assert 0 < json.loads(call(*tested, "--json").stdout)["pass_probability"] <= 1
    assert "pass_probability" in call(*tested).stdout


# Listings ----------------------------------------------------------------------------------------------------------


LISTED = {
    "strategies": ([*STRATEGIES], "dp_fed_sgd", {"family", "paper", "unit", "guarantee", "cost", "needs"}),
    "problems": ([*PROBLEMS], "one_hot_poisson", {"certificate"}),
    "data": ([*POPULATIONS, "table", *PUBLIC_DATASETS], "movielens", {"users", "samples", "source"}),
    "settings": ([key.name for key in explained()], "privacy.epsilon", {"meaning", "default", "effect on privacy"}),
}


@pytest.mark.parametrize("what", LISTED)
def test_what_there_is_is_listed_for_programs_and_as_a_table_for_people(what, monkeypatch):
    names, one, keys = LISTED[what]
    listed = json.loads(call("list", what, "--json").stdout)
    assert [entry["name"] for entry in listed] == names
    assert all(keys <= entry.keys() for entry in listed)
    if what == "data":
        (insteval,) = (entry for entry in listed if entry["name"] == "insteval")
        assert (insteval["users"], insteval["samples"]) == (2972, 73421)
        assert insteval["source"].startswith("https://")
    elif what != "settings":
        assert [entry["name"] for entry in listed if not all(entry.values())] in ([], ["linear"])
    monkeypatch.setenv("COLUMNS", "200")
    outcome = call("list", what)
    assert outcome.exit_code == 0
    assert one in outcome.stdout


def test_certificates_of_problems_are_in_words():
    told = {name: section.certificate for name, section in PROBLEMS.items()}
    assert told["torch"] == "none"
    assert not [name for name, words in told.items() if re.search(r"\bA[1-4]\b", words)]
    assert [name for name, words in told.items() if "convex" not in words] == ["torch"]
    assert [name for name, words in told.items() if "not convex" in words] == ["biweight_regression"]


def test_one_strategy_is_shown_with_its_guarantee_cost_and_settings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    shown = call("list", "strategies", "dp_fed_sgd").stdout
    (entry,) = json.loads(call("list", "strategies", "dp_fed_sgd", "--json").stdout)
    for text in (entry["paper"], entry["cost"], entry["guarantee"][:60], *entry["settings"]):
        assert text in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["problems", "logistik"], "problems has no 'logistik'; did you mean 'logistic'?"),
        (["strategie"], "userdp list has no 'strategie'; did you mean 'strategies'?"),
        (["losses"], "userdp list has no 'losses'; there are strategies, problems, data, settings"),
    ],
)
def test_an_unknown_word_gets_the_nearest_or_all(words, told):
    unknown = call("list", *words)
    assert unknown.exit_code == 2
    assert told in unknown.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train"], "userdp has no 'train'; did you mean 'run'?"),
        (["runn"], "userdp has no 'runn'; did you mean 'run'?"),
        (["serve", "strat"], "userdp serve has no 'strat'; did you mean 'start'?"),
        (["account", "bogus"], "userdp account has no 'bogus'; there are create, show, list, export, enter, check"),
    ],
)
def test_an_unknown_verb_gets_one_other(words, told):
    unknown = CliRunner().invoke(app, words, prog_name="userdp", env={"COLUMNS": "200"})
    assert unknown.exit_code == 2
    assert unknown.stderr.count(told) == 1
    assert unknown.stderr.count("did you mean") <= 1


# Exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--set", "privacy.epsilonn=1"], "unknown key privacy.epsilonn; did you mean privacy.epsilon?"),
        (["plan", "--set", "privacy.epsilon=-1"], "privacy.epsilon = -1"),
        (["run", "--set", "privacy.delta=0.5"], "at least 1/n"),
        (["plan", "--set", "privacy.delta=0.5"], "at least 1/n"),
        (["run", "--engine", "spark"], "engine.kind = 'spark'"),
        (["run", "--seed", "-4"], "seed = -4"),
        (["run", "--set", 'strategy={kind="localized_robust_sgd"}', "--set", "data.users=30"], "data.users = 30: too"),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence_and_exit_code_2(config, arguments, told):
    outcome = call(*arguments, config)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert told in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (RunFailed("too few replies"), 1, "too few replies"),
        (ZeroDivisionError("oops"), 1, "unexpected ZeroDivisionError in mock.py"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_have_their_exit_codes(config, monkeypatch, error, code, told):
    monkeypatch.setattr(simulations.runs.run, "run", Mock(side_effect=error))
    outcome = call("run", config, "--json")
    assert (outcome.exit_code, outcome.stdout) == (code, "")
    assert told in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_failed_run_keeps_its_files_and_its_report_can_be_made(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Quadratic, "user_gradients", Mock(side_effect=RunFailed))
    outcome = call("run", config, "--output", tmp_path / "runs", "--json")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    directory = tmp_path / "runs" / "small-dp_fed_sgd-seed3"
    assert "error" in json.loads((directory / "result.json").read_text())
    assert load_config(directory / "config.toml").name == "small"
    assert call("report", directory).exit_code == 0
    assert "stopped early" in (directory / "report.html").read_text()


# The terminal ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulations.reports.progress, "Console", partial(Console, force_terminal=True, width=120))
    with progress_bar() as progress:
        simulations.runs.run.run(
            load_config(config, [f'output.directory="{tmp_path}"']), observers=[progress], directory=tmp_path / "run"
        )
    assert "epsilon spent" in capsys.readouterr().err


@pytest.mark.parametrize("progress", ["no", 0, None])
def test_what_is_neither_true_nor_false_asks_for_no_progress_bar(progress):
    with pytest.raises(BadInput, match=f"progress = {progress!r}: must be True or False"), progress_bar(progress):
        pass


def test_warnings_of_the_library_reach_standard_error(capsys):
    LOG_WARNINGS()
    log = logging.getLogger("userdp")
    log.warning("noise drowns the signal")
    log.info("a detail")
    captured = capsys.readouterr()
    assert captured.err == "userdp: WARNING: noise drowns the signal\n"
    assert captured.out == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_its_words(verb):
    outcome = call(verb, "--help")
    assert outcome.exit_code == 0
    shown = " ".join(outcome.stdout.split())
    assert "Usage" in shown
    for word in VERBS[verb].params:
        assert not word.help or " ".join(word.help.split())[:20] in shown
        assert word.help or not isinstance(word, typer.core.TyperArgument)


def test_help_keeps_square_brackets_and_whole_sentences():
    assert "under [data] and the budget under [privacy]" in " ".join(call("query", "--help").stdout.split())
    for command in ([], ["account"], ["serve"]):
        assert "..." not in call(*command, "--help").stdout.split("Commands:")[1]


@pytest.mark.parametrize("verb", ["run", "plan", "compare", "query"])
def test_a_missing_configuration_is_exit_code_2(verb, tmp_path):
    outcome = call(verb, tmp_path / "absent.toml")
    assert outcome.exit_code == 2
    assert "does not exist" in outcome.stderr


@pytest.mark.slow
def test_the_installed_command_ends_with_the_right_code(tmp_path):
    command = shutil.which("userdp", path=os.path.dirname(sys.executable))
    start = [command] if command else [sys.executable, "-c", "from simulations.cli import main; main()"]
    command = [*start, "plan", str(tmp_path / "absent.toml")]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "does not exist" in outcome.stderr

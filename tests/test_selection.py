"""Tests that a change runs: all that can notice it, and a draw of large products that leaves no kind of case out."""

import json
import subprocess
from pathlib import Path

import pytest
import selection
from hypothesis import given
from hypothesis import strategies as st
from mutants.run import Mutant, of_a_change

ROOMS = sorted(
    folder.relative_to(selection.ROOT / "tests").as_posix()
    for package in selection.PACKAGES
    for folder in (selection.ROOT / "tests" / package).iterdir()
    if (selection.ROOT / package / folder.name).is_dir() and any(folder.glob("test_*.py"))
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_test_of_a_room_is_reached_from_the_room(room):
    graph = selection.imports()
    found = selection.reached([file for file in graph if file.startswith(f"{room}/")], graph)
    assert {file for file in graph if file.startswith(f"tests/{room}/test_")} <= found


def test_a_change_reaches_who_imports_it_even_by_a_name_in_a_registry_and_nobody_else():
    found = selection.noticing(frozenset({"strategies/clipping/dp_ftrl.py"}))
    assert {
        "tests/strategies/clipping/test_ftrl.py",  # imports it from the package that passes it on
        "tests/strategies/core/test_budgets_spent.py",  # takes all that the registry names
        "tests/simulations/runs/test_resume.py",
    } <= found
    assert not {file for file in found if file.startswith("tests/userdp/estimators/")}
    assert selection.noticing(frozenset({"tests/userdp/masking/test_grid.py"})) == {"tests/userdp/masking/test_grid.py"}


@pytest.mark.parametrize(
    "file",
    [
        "strategies/core/base.py",
        "strategies/wire/replies.py",
        "userdp/accounting/ledger.py",
        "constraints.txt",
        "tests/conftest.py",
        "simulations/configs/quickstart.toml",
        "tests/golden/cases.toml",
    ],
)
def test_what_all_share_and_what_no_import_tells_of_reaches_every_test(file):
    assert (selection.ROOT / file).is_file()
    assert selection.noticing(frozenset({file})) is None


def test_pages_and_lists_of_faults_reach_no_slow_test():
    assert selection.noticing(frozenset({"README.md", "docs/audit.md", "tests/mutants/docs.toml"})) == frozenset()


@pytest.mark.parametrize("file", ["simulations/reports/templates/base.html.md", "docs/site.css"])
def test_how_pages_look_reaches_the_browser_alone(file):
    assert (selection.ROOT / file).is_file()
    assert selection.noticing(frozenset({file})) == {selection.BROWSER}
    assert (selection.ROOT / selection.BROWSER).is_file()
    assert selection.touched(selection.BROWSER, frozenset({file}))
    assert not selection.touched(selection.BROWSER, frozenset({"docs/audit.md"}))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("de"), st.integers(0, 9)), unique=True, min_size=1),
    st.integers(13, 60),
    st.text(),
)
def test_a_draw_shows_every_part_of_a_case_and_is_the_same_for_one_seed(cases, most, seed):
    names = [f"test[{'-'.join(map(str, case))}]" for case in cases]
    found = selection.drawn(names, most, seed)
    assert found <= set(names)
    assert len(found) == min(most, len(names))
    chosen = [case for case, name in zip(cases, names, strict=True) if name in found]
    for place in range(3):
        assert {case[place] for case in chosen} == {case[place] for case in cases}
    assert selection.drawn(names[::-1], most, seed) == found


def test_other_commits_draw_other_cases_and_all_are_drawn_in_the_end():
    names = [f"test[{number % 40}-{number}]" for number in range(200)]
    draws = [selection.drawn(names, 24, f"commit {number}") for number in range(200)]
    assert len(set(draws)) == 200
    assert frozenset().union(*draws) == set(names)  # one is missing with probability below 200 (1 - 24/200)^200 < 2e-9


def test_a_fifth_of_long_cases_is_drawn_and_all_of_a_room_that_changed():
    cases = [f"test[{number}]" for number in range(100)]
    draws = [{case for case in cases if selection.by_lot(case, f"commit {number}")} for number in range(200)]
    assert 0.18 < sum(map(len, draws)) / 20_000 < 0.22  # seven deviations
    assert set().union(*draws) == set(cases)
    audit = "tests/userdp/audit/test_statistic.py"
    assert selection.touched(audit, frozenset({"userdp/audit/scores.py"}))
    assert selection.touched(audit, frozenset({audit}))
    assert not selection.touched(audit, frozenset({"userdp/masking/grid.py"}))
    assert not selection.touched(audit, None)


def committed(folder: Path, file: str) -> str:
    (folder / file).write_text(file, encoding="utf-8")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("add", file), (*who, "commit", "-q", "-m", file)):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def history(tmp_path):
    """A repository of two commits, the first of which a long run found green."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    first = committed(tmp_path, "first.py").strip()
    committed(tmp_path, "second.py")
    record = tmp_path / "long_run.json"
    record.write_text(json.dumps({"stages": {"slow tests": {"green_at": first}, "containers": {"green_at": "0" * 40}}}))
    return tmp_path, record


def test_a_change_is_what_differs_from_the_last_green_long_run_also_where_it_is_not_committed(history):
    folder, record = history
    assert selection.since("slow tests", record, folder) == {"second.py"}
    (folder / "first.py").write_text("changed", encoding="utf-8")
    assert selection.since("slow tests", record, folder) == {"first.py", "second.py"}


def test_without_a_green_long_run_of_this_history_everything_runs(history):
    folder, record = history
    assert selection.since("containers", record, folder) is None
    assert selection.since("planted faults", record, folder) is None
    assert selection.since("slow tests", folder / "absent.json", folder) is None
    assert selection.noticing(None) is None


def test_faults_of_changed_files_are_tried_and_forty_others(monkeypatch):
    mutants = [Mutant("area", f"fault {n}", f"file{n % 20}.py", "", "", ()) for n in range(200)]
    monkeypatch.setattr(selection, "since", lambda stage: frozenset({"file3.py", "file4.py"}))
    found = of_a_change(mutants, "seed")
    assert {m for m in mutants if m.file in ("file3.py", "file4.py")} <= set(found)
    assert len(found) == len(set(found)) == 20 + 40
    assert of_a_change(mutants, "seed") == found != of_a_change(mutants, "another")


def test_the_record_of_the_long_run_can_be_read():
    for said in selection.long_run().values():
        assert {"verdict", "text", "commit", "green_at", "date", "seconds"} <= set(said)


def test_a_change_of_an_app_reaches_the_tests_of_apps():
    changed = frozenset(["apps/userdp-torch/userdp_torch/task.py"])
    assert "tests/apps/test_apps_on_flower.py" in selection.noticing(changed)
    assert selection.touched("tests/apps/test_apps_on_flower.py", changed)

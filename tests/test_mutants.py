"""The list of planted faults (`make mutants`) fits the project, and its runner tells who survives."""

import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutants.mutate import room_tests
from mutants.run import Outcome, read_lists, verdict

from strategies import STRATEGIES

ROOT = Path(__file__).parent.parent
MUTANTS = read_lists()
PACKAGES = ("userdp.", "strategies.", "simulations.")
"""Beginnings of the names of lists about one room."""
LEAST = 250
"""Faults that the lists have at least."""
SHARED = {
    # Every strategy runs on these two: whatever one of them shows, it shows of them, and the other way round.
    "strategies/core": ("tests/strategies/",),
    "strategies/wire": ("tests/strategies/",),
    "strategies": ("tests/strategies/core/", "tests/strategies/wire/"),
    "simulations/api": ("tests/simulations/test_",),  # what Python calls and commands do alike is tested together
    # What a run leaves behind is seen in runs, and what a run does in what it leaves behind.
    "simulations/records": ("tests/simulations/runs/",),
    "simulations/reports": ("tests/simulations/records/",),
    "simulations/engines": ("tests/simulations/runs/",),
    "simulations/runs": ("tests/simulations/records/", "tests/simulations/deployment/"),
    # How a sampling is priced, and how its ledger counts, is tested with the sampler.
    "userdp/accounting": ("tests/userdp/sampling/",),
    # Baselines are built from the rounds of other rooms.
    "strategies/baselines": ("tests/strategies/clipping/", "tests/strategies/localized/"),
}
"""Room -> other folders whose tests may notice a fault of it."""
ELSEWHERE = {
    "The audit finds noise of half the size",  # is about the audit
    "Secret cohorts are drawn again for a lost round",  # needs a run that was killed
    "Shuffling amplifies without the delta of the amplification itself",  # is a paper's theorem
}

TINY = {
    "userdp/__init__.py": '"""A project of one function."""\n\n\ndef double(x):\n    return 2 * x + 0\n',
    "tests/test_double.py": (
        "import pytest\nfrom userdp import double\n\n\n"
        "@pytest.mark.parametrize('x', [0, 3])\ndef test_double(x):\n    assert double(x) == 2 * x\n\n\n"
        "def test_wrong():\n    assert double(1) == 3\n"
    ),
    "pyproject.toml": "[tool.pytest.ini_options]\n",
}
FAULTS = [  # what is planted, by which test, and the verdict
    ("2 * x", "3 * x", "test_double", "killed"),
    ("2 * x", "2 * x if x else exit(3)", "test_double[0]", "killed"),
    ("+ 0", "- 0", "test_double", "SURVIVED"),
    ("x + 0", "x + y", "test_double", "broken"),
    ("return", "return (", "test_double", "broken"),
    ("2 * x", "__import__('os')._exit(1)", "test_double", "broken"),
    ("+ 0", "- 0", "test_wrong", "broken"),
    ("+ 0", "- 0", "test_double[7]", "broken"),
    ("+ 0", "- 0", "test_missing", "broken"),
    ("4 * x", "5 * x", "test_double", "stale"),
    ("x", "y", "test_double", "stale"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_fault_fits_the_project_as_it_is(mutant):
    assert mutant.file.startswith(("userdp/", "strategies/", "simulations/", "apps/"))
    assert mutant.text(ROOT) is not None, f"'old' must be in {mutant.file} exactly once, and differ from 'new'"
    assert mutant.tests
    for test in mutant.tests:
        file, _, function = test.partition("::")
        function = function.partition("[")[0]
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


def noticing(file):
    """The folders of tests that may notice a fault of the file: those of its room, or of the rooms that share them."""
    package, *rest = file.split("/")
    room = "/".join([package, *rest[:1]]) if len(rest) > 1 else package
    return f"tests/{room}/", *SHARED.get(room, ()), *SHARED.get(package, ())


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.area.startswith(PACKAGES)], ids=lambda mutant: mutant.name)
def test_a_fault_is_found_by_the_room_tests_its_room(mutant):
    """A test that lies right in ``tests/strategies`` is a contract of every strategy."""
    for test in mutant.tests:
        contract = mutant.file.startswith("strategies/") and Path(test.partition("::")[0]).parent.name == "strategies"
        assert mutant.name in ELSEWHERE or contract or test.startswith(noticing(mutant.file)), test


def test_a_changed_file_is_tested_by_its_room():
    assert room_tests("userdp/data/tables/cells.py") == ["tests/userdp/data"]
    assert "tests/userdp/test_noise.py" in room_tests("userdp/noise.py")
    assert "tests/simulations/test_predict.py" in room_tests("simulations/api/prediction.py")


def test_the_faults_are_many_and_their_names_differ():
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
    assert len(MUTANTS) >= LEAST


def test_a_fault_under_another_name_is_not_passed_over(tmp_path):
    (tmp_path / "tiny.toml").write_text("[[fault]]\nname = 'nobody plants me'\n[[mutant]]\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"tiny\.toml holds fault"):
        read_lists(tmp_path)


@pytest.mark.slow  # so that the fast tests pass with a new strategy in place, before it has faults of its own
@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"non_private"}))
def test_every_strategy_has_a_fault_of_its_own(name):
    """A new strategy adds its faults to the claims of its room, in tests/mutants."""
    module = Path(inspect.getfile(STRATEGIES[name])).relative_to(ROOT).as_posix()
    assert any(mutant.file == module for mutant in MUTANTS)


@pytest.mark.slow
def test_the_runner_says_who_was_killed_and_who_survived(tmp_path):
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    lists = tmp_path / "tests" / "mutants"
    lists.mkdir()
    (lists / "run.py").write_text((ROOT / "tests" / "mutants" / "run.py").read_text(encoding="utf-8"), encoding="utf-8")
    (lists / "tiny.toml").write_text(
        "\n".join(
            f"[[mutant]]\nname = 'fault {number}'\nfile = 'userdp/__init__.py'\nold = '''{old}'''\nnew = '''{new}'''\n"
            f"tests = ['tests/test_double.py::{test}']"
            for number, (old, new, test, _) in enumerate(FAULTS)
        ),
        encoding="utf-8",
    )
    # Without the imports that the tests of the project need and these do not.
    program = "import sys; sys.path[0] = 'tests/mutants'; import run; run.IMPORTED_ONCE = ('pytest',); run.main()"
    done = subprocess.run(
        [sys.executable, "-c", program + " and sys.exit(1)", "--verbose"],
        cwd=tmp_path,
        env={"PATH": "", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = {number: kind for kind, number in re.findall(r"^(\w+): fault (\d+) ", done.stdout, re.MULTILINE)}
    assert said == {str(number): kind for number, (*_, kind) in enumerate(FAULTS)}, done.stdout + done.stderr
    assert done.returncode == 1
    for name, text in TINY.items():  # the project itself stays as it was
        assert (tmp_path / name).read_text(encoding="utf-8") == text


def test_only_a_failed_test_kills():
    mutant = MUTANTS[0]
    assert verdict(mutant, Outcome(0)).kind == "SURVIVED"
    assert verdict(mutant, Outcome(1, first="an assertion")).kind == "killed"
    assert verdict(mutant, Outcome(1, first="a name", misspelt=True)).kind == "broken"
    assert {verdict(mutant, Outcome(code)).kind for code in (2, 3, 4, 5)} == {"broken"}

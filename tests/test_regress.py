"""benchmarks/regress.py: what it calls slower, from measurements that are made up; its kernels, called once each."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BEFORE, NOW = Path("before"), Path("now")


@pytest.fixture(scope="module")
def scripts(module_of):
    return module_of("regress"), module_of("kernels")


class Machine:
    """A made-up machine: seconds of each kernel in each tree, in the order in which it is asked; the last one stays."""

    def __init__(self, before, now):
        self.left = {BEFORE: before, NOW: now}
        self.asked = []

    def __call__(self, tree, names):
        self.asked.append((tree, tuple(names)))
        found = {}
        for name, seconds in self.left[tree].items():
            if not names or name in names:
                found[name] = seconds.pop(0) if len(seconds) > 1 else seconds[0]
        return found


def slower(command, machine):
    changes = command.compared(machine, BEFORE, NOW)
    return [one.name for one in command.slower(changes)], command.table(changes, "abc1234")


def test_a_kernel_made_slower_is_reported_and_equal_ones_are_not(scripts):
    command, _ = scripts
    machine = Machine(
        {"clip": [1.0], "median": [2.0], "score": [3.0]}, {"clip": [1.3], "median": [2.0], "score": [3.5]}
    )
    names, told = slower(command, machine)
    assert names == ["clip"]
    assert "SLOWER: clip: 1.30 > 1.2 times" in told
    assert told.count("SLOWER") == 1
    # The trees take turns, and the second look is at what was slower alone.
    first, second = 2 * command.TURNS, 2 * command.MORE_TURNS
    assert machine.asked[:first] == [(BEFORE, ()), (NOW, ())] * command.TURNS
    assert machine.asked[first:] == [(BEFORE, ("clip",)), (NOW, ("clip",))] * command.MORE_TURNS
    assert len(machine.asked) == first + second


def test_noise_of_one_turn_or_of_one_look_is_no_regression(scripts):
    command, _ = scripts
    one_turn = Machine({"clip": [1.0]}, {"clip": [5.0, 1.1, 4.0]})
    assert slower(command, one_turn)[0] == []
    assert len(one_turn.asked) == 2 * command.TURNS
    one_look = Machine({"clip": [1.0]}, {"clip": [2.0] * command.TURNS + [1.1]})
    assert slower(command, one_look)[0] == []


def test_a_kernel_is_new_where_it_was_not_there_and_missed_where_it_is_gone(scripts):
    command, _ = scripts
    names, told = slower(command, Machine({"clip": [1.0]}, {"clip": [1.0], "score": [2.0]}))
    assert names == []
    assert [line for line in told.splitlines() if "not there" in line] == ["score | not there |  2000.000 |"]
    with pytest.raises(SystemExit, match="ran before, and not now: score"):
        slower(command, Machine({"clip": [1.0], "score": [2.0]}, {"clip": [1.0]}))


def test_it_compares_with_where_the_branch_left_main_and_on_main_with_the_commit_before(scripts, monkeypatch):
    command, _ = scripts
    commits = {("rev-parse", "HEAD"): "tip", ("merge-base", "HEAD", "main"): "left"}
    monkeypatch.setattr(command, "git", lambda *asked: commits[asked])
    assert command.baseline() == "left"
    commits["merge-base", "HEAD", "main"] = "tip"
    assert command.baseline() == "HEAD~1"


def test_a_commit_that_is_not_there_ends_with_what_git_says(scripts, capsys):
    command, _ = scripts
    with pytest.raises(SystemExit) as ended:
        command.git("rev-parse", "--verify", "--quiet", "no-such-commit")
    assert ended.value.code == 2
    assert "git rev-parse" in capsys.readouterr().err


@pytest.mark.slow
def test_pytest_benchmark_measures_this_tree(scripts):
    command, kernels = scripts
    assert command.measured(ROOT, ["median"]).keys() == {"median"}
    for make in kernels.KERNELS.values():
        kernel = make()
        kernel()
        kernel()  # counters and caches inside must not make the second call fail

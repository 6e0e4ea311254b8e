"""The project's kernels that became slower: this tree against an earlier commit, on one machine, in turns.

    python benchmarks/regress.py                    against where this branch left main; on main, the commit before
    python benchmarks/regress.py --against v1.0     against a tag, a branch or a commit

pytest-benchmark measures the kernels of `kernels.py` in processor time, in a process of its own each time: the earlier
commit's, this tree's, and so on in turns. What counts is the least time of each, which other work on the machine can
only raise. What looks slower is measured again in more turns, and counts as slower if it still is. The exit code is 1
then, and 2 if nothing could be compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT = 1.2
"""Times that a kernel may take of its time before."""
TURNS, MORE_TURNS = 3, 7
SECONDS = 0.2
"""The least time for a kernel in one process."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Times = dict[str, float]
Measure = Callable[[Path, Sequence[str]], Times]
"""(a tree, names of kernels or none for all) -> the least seconds of each; those that the tree lacks are left out."""


@dataclass(frozen=True)
class Change:
    """A kernel before and now.

    Attributes:
        name: of the kernel.
        before: least seconds; None where the earlier tree lacks it.
        now: least seconds.
    """

    name: str
    before: float | None
    now: float

    @property
    def ratio(self) -> float:
        """Now over before; 0 where there is no before."""
        return self.now / self.before if self.before else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="the earlier commit")
    parser.add_argument("--only", nargs="+", default=[], metavar="KERNEL", help="names of kernels; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    arguments = parser.parse_args()
    commit = git("rev-parse", "--short", arguments.against or baseline())
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        git("worktree", "add", "--detach", "--quiet", str(earlier), commit)
        try:
            changes = compared(measured, earlier, ROOT, arguments.only)
        finally:
            git("worktree", "remove", "--force", str(earlier))
    print(table(changes, commit))
    if arguments.json:
        numbers = [{"kernel": one.name, "before": one.before, "now": one.now} for one in changes]
        arguments.json.write_text(json.dumps({"against": commit, "kernels": numbers}, indent=2) + "\n")
    sys.exit(1 if slower(changes) else 0)


def baseline() -> str:
    """The commit where this branch left main; the commit before, on main itself."""
    here, left = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "main")
    return "HEAD~1" if left == here else left


def git(*command: str) -> str:
    """The output of git; a complaint of git ends the program."""
    done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"git {command[0]}: {done.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return done.stdout.strip()


def compared(measure: Measure, before: Path, now: Path, names: Sequence[str] = ()) -> list[Change]:
    """All kernels of this tree; those that look slower have been measured a second time.

    Args:
        measure: takes the times.
        before: the earlier tree.
        now: this one.
        names: of kernels; all if there are none.
    """
    changes = in_turns(measure, before, now, names, TURNS)
    if suspects := [one.name for one in slower(changes)]:
        again = {one.name: one for one in in_turns(measure, before, now, suspects, MORE_TURNS)}
        changes = [again.get(one.name, one) for one in changes]
    return changes


def in_turns(measure: Measure, before: Path, now: Path, names: Sequence[str], turns: int) -> list[Change]:
    """The least times of so many turns; it ends the program where a kernel runs before and not now."""
    times: dict[Path, Times] = {before: {}, now: {}}
    for _ in range(turns):
        for tree, least in times.items():
            for name, seconds in measure(tree, names).items():
                least[name] = min(seconds, least.get(name, seconds))
    if lost := times[before].keys() - times[now].keys():
        sys.exit(f"ran before, and not now: {', '.join(sorted(lost))}")
    return [Change(name, times[before].get(name), seconds) for name, seconds in times[now].items()]


def slower(changes: Sequence[Change]) -> list[Change]:
    """The changes beyond the limit."""
    return [one for one in changes if one.ratio > LIMIT]


def measured(tree: Path, names: Sequence[str]) -> Times:
    """The kernels of THIS tree's `kernels.py` on the packages of any tree, in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        settings, found = Path(folder) / "pytest.ini", Path(folder) / "found.json"
        settings.write_text("[pytest]\n")  # neither tree's, of which the earlier may lack or refuse something
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), "--rootdir", folder]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings", "--import-mode=importlib"]
        command += ["--benchmark-timer=time.process_time", "--benchmark-disable-gc", "--benchmark-min-rounds=5"]
        command += [f"--benchmark-max-time={SECONDS}", f"--benchmark-json={found}", "--benchmark-quiet"]
        command += [f"{HERE / 'kernels.py'}::test_kernel[{name}]" for name in names] or [str(HERE / "kernels.py")]
        # A worker of xdist, which may have started this, measures nothing.
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = own | ONE_THREAD | {"PYTHONPATH": os.pathsep.join([str(tree), str(ROOT / "research")])}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            sys.exit(2)
        benchmarks = json.loads(found.read_text())["benchmarks"] if found.stat().st_size else []
    for one in benchmarks:
        if not Path(one["extra_info"]["userdp"]).is_relative_to(tree):
            sys.exit(f"userdp was imported from {one['extra_info']['userdp']}, not from {tree}")
    return {one["param"]: one["stats"]["min"] for one in benchmarks}


def table(changes: Sequence[Change], commit: str) -> str:
    """The changes for people, in milliseconds, and what is slower."""
    width = max(len(one.name) for one in changes)
    lines = [f"{'kernel':{width}} | {commit:>9} |       now | ratio"]
    for one in changes:
        before, ratio = ("not there", "") if one.before is None else (f"{1e3 * one.before:9.3f}", f"{one.ratio:5.2f}")
        lines.append(f"{one.name:{width}} | {before} | {1e3 * one.now:9.3f} | {ratio}".rstrip())
    lines += [f"SLOWER: {one.name}: {one.ratio:.2f} > {LIMIT} times, looked at twice" for one in slower(changes)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

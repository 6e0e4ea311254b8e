"""Runs that are killed: by themselves at a chosen write or question, in a process of their own, or from outside."""

import json
import os
import signal
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.config.run_config import RunConfig
from simulations.engines.grids import InMachineGrid
from simulations.runs.run import run

TIMES = ("seconds", "peak_memory_mib")
LENGTHS = ("fact.clipped_share_private", "fact.median_length_private", "fact.noise_over_signal_private")
"""Facts about users that nodes in this process and in Ray actors report, and Flower's do not."""
QUIET = 0.02
"""Seconds after which a test looks again."""


def left(directory: Path, *, lengths: bool = True) -> dict[str, object]:
    """The files of an ended run, but for time and memory; without ``lengths``, only what every engine leaves."""
    result = json.loads((directory / "result.json").read_text())
    rounds = pd.read_parquet(directory / "rounds.parquet").drop(
        columns=["seconds", *(() if lengths else LENGTHS)], errors="ignore"
    )
    return {
        "files": sorted(path.name for path in directory.iterdir()),
        "result": {name: value for name, value in result.items() if name not in TIMES},
        "rounds": rounds.to_csv(float_format="%.17g"),
        "model": np.load(directory / "model.npz")["x"].tobytes(),
        "guarantee": (directory / "guarantee.json").read_text(),
        "plan": (directory / "plan.json").read_text(),
    }


def on_disk(monkeypatch) -> list[object]:
    """Note what reaches the disk from now on: "folder", or a file's inode and size; with its name where it is moved."""
    events, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(handle):
        found = os.fstat(handle)
        events.append("folder" if stat.S_ISDIR(found.st_mode) else (found.st_ino, found.st_size))
        fsync(handle)

    def noted_replace(source, target):
        replace(source, target)
        found = Path(target).stat()
        events.append((Path(target).name, found.st_ino, found.st_size))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return events


def killed_at(config: RunConfig, directory: Path, moment: int, *, resume: bool = False) -> bool:
    """Run in a forked process that kills itself at its so-manieth move of a file or question to nodes.

    Returns:
        Whether it was killed; False where it had ended before.
    """
    child = os.fork()
    if not child:
        code = 1
        try:
            _count_down(moment)
            run(config, directory=directory, checkpoint=True, resume=resume, report=False)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.WEXITSTATUS(status) == 0
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True


def _count_down(moment: int) -> None:
    """Kill this process at the so-manieth of these moments: before a move, after it, before nodes are asked, after."""
    passed = 0

    def guarded(call):
        def either(*arguments, **more):
            tick()
            outcome = call(*arguments, **more)
            tick()
            return outcome

        return either

    def tick() -> None:
        nonlocal passed
        passed += 1
        if passed > moment:
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = guarded(os.replace)
    InMachineGrid.send_and_receive = guarded(InMachineGrid.send_and_receive)

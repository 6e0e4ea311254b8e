"""A copy of a run's directory for others: its public and its noised fields, and nothing else."""

import shutil
import tomllib
from pathlib import Path

import pandas as pd

from simulations.records.released_fields import RELEASED, kept
from simulations.records.run_directory import as_json, check_files, read_json, writing
from simulations.reports.report import render
from userdp.errors import BadInput

_AS_THEY_ARE = ("config.toml", "plan.json", "guarantee.json", "model.npz")
_FILTERED = ("data.json", "result.json")


def copy_released(directory: Path, target: Path) -> Path:
    """Copy the fields of a run that others may see into an empty or new folder, and return the path of its report.

    BadInput if the run has not ended, promises nothing, or has noise that anybody can remove.
    """
    _check(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"--released {target}: must be a new or an empty folder, so that nothing else is handed on")
    rounds = pd.read_parquet(directory / "rounds.parquet")
    columns = list(kept("rounds.parquet", dict.fromkeys(map(str, rounds.columns)), RELEASED))
    with writing(f"--released {target}:", "choose another"):
        target.mkdir(parents=True, exist_ok=True)
        for name in _AS_THEY_ARE:
            shutil.copyfile(directory / name, target / name)
        for name in _FILTERED:
            (target / name).write_text(as_json(kept(name, read_json(directory / name), RELEASED)), encoding="utf-8")
        rounds[columns].to_parquet(target / "rounds.parquet", index=False)
    return render(target)


def _check(directory: Path) -> None:
    check_files(directory, (*_AS_THEY_ARE, *_FILTERED, "rounds.parquet"), "a run that has ended")
    if not read_json(directory / "guarantee.json")["holds"]:
        raise BadInput(f"{directory}: this run promises no privacy, so nothing of it may be handed on")
    config = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    if config["privacy"]["noise"] == "seeded" and config["data"]["kind"] == "table":
        raise BadInput(
            f'{directory}: privacy.noise = "seeded" does not protect the people of a table: anybody who guesses the '
            'seed can remove the noise; run again with privacy.noise = "secure"'
        )

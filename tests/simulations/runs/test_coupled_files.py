"""Files of two runs on other people, whose noisy outputs are the same: all that is released is the same to the bit."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers_coupling import taped

from simulations.config.run_config import parse_config
from simulations.records.released_fields import RELEASED, kept
from simulations.runs.run import run
from simulations.testing.tape import Tape

USERS = 120
RUNS = {
    "fixed": ({"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0}, {}),
    "auto, evaluated": ({"kind": "auto"}, {"evaluate": True}),
    "adaptive": ({"kind": "adaptive_clipping", "rounds": 2}, {}),
}


def table(path, law):
    """Two rows of each person, of one law or another."""
    rng = np.random.default_rng(int(10 * law))
    who = np.repeat(np.arange(USERS), 2)
    columns = {name: law * rng.uniform(-1, 1, len(who)) for name in ("a", "y")}
    columns["y"][0] = np.nan if law < 1 else 0.5
    pd.DataFrame({"who": who, **columns}).to_csv(path, index=False)


def files(folder, strategy, privacy, law, played=None):
    """The released fields of all files of a run, and its tape."""
    folder.mkdir()
    table(folder / "table.csv", law)
    data = {"kind": "table", "path": str(folder / "table.csv"), "user": "who", "all_users": USERS, "features": ["a"]}
    data |= {"ranges": {"a": [-1.0, 1.0]}, "target": "y", "target_range": [-1.0, 1.0], "max_samples": 2}
    data |= {"test_fraction": 0.2}
    config = parse_config(
        {
            "name": "coupled",
            "seed": 3,
            "problem": {"kind": "squared", "radius": 2.0},
            "data": data,
            "privacy": {"epsilon": 8.0, "delta": 1e-3, **privacy},
            "strategy": strategy,
            "output": {"reference": False, "anyway": True},
        }
    )
    tape = Tape(None if played is None else played.draws)
    with taped(tape):
        done = run(config, directory=folder / "run", report=False)
    found = {}
    for file in sorted(done.directory.iterdir()):
        if file.suffix == ".json":
            values = json.loads(file.read_text(encoding="utf-8"))
            found[file.name] = kept(file.name, values, RELEASED) if isinstance(values, dict) else values
        elif file.suffix == ".parquet":
            rows = pq.read_table(file)
            found[file.name] = {
                name: repr(rows[name].to_pylist()) for name in rows.column_names if kept(file.name, {name: 0}, RELEASED)
            }
        elif file.suffix == ".npz":
            with np.load(file) as arrays:
                found[file.name] = {name: arrays[name].tobytes() for name in arrays.files}
    return found, tape


@pytest.mark.parametrize("name", RUNS)
def test_of_other_people_no_released_field_of_a_file_differs(name, tmp_path):
    one, tape = files(tmp_path / "one", *RUNS[name], 1.0)
    other, _ = files(tmp_path / "other", *RUNS[name], 0.3, tape)
    assert {"result.json", "plan.json", "guarantee.json", "rounds.parquet"} <= set(one)
    assert one.keys() == other.keys()
    for file, fields in one.items():
        assert fields.keys() == other[file].keys(), file
        for field, value in fields.items():
            assert value == other[file][field], (file, field)

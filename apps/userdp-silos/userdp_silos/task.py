"""The columns that all silos agree on, the problem, and the people of a silo: drawn, or read from its own table."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from flwr.app import Context

from userdp import Logistic, Node, read_table

# Public declarations. They are never taken from data, because the guarantee rests on them.
COLUMNS = {
    "user": "person",
    "features": ["age", "pressure"],
    "ranges": {"age": [18.0, 98.0], "pressure": [80.0, 200.0]},
    "categorical": {"smokes": ["no", "yes"]},
    "target": "ill",
    "positive": "yes",
}
NAMES = ["age", "pressure", "smokes=no", "smokes=yes"]
PROBLEM = Logistic(columns=len(NAMES), feature_norm=3**0.5, radius=10.0)


def load_node(context: Context) -> Node:
    """Return the node of a silo, by the keys of its SuperNode's node-config."""
    config = context.node_config
    if "partition-id" in config and "num-partitions" in config:
        users, silos = int(context.run_config["num-users"]), int(config["num-partitions"])
        return simulated_silo(users, int(config["partition-id"]), silos)
    return table_silo(Path(str(config["data-path"])), int(config["first-user"]))


@lru_cache(maxsize=8)
def simulated_silo(users: int, silo: int, silos: int) -> Node:
    """Write the simulated table of one silo, and read it as `table_silo` reads a real one."""
    table, first_user = draw_silo(users, silo, silos)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "people.csv"
        table.to_csv(path, index=False)
        return table_silo(path, first_user)


@lru_cache(maxsize=8)
def table_silo(path: Path, first_user: int) -> Node:
    """Read a CSV or Parquet table, whose people are ``first_user``, ``first_user + 1``, ... among all silos'."""
    table = read_table(path, **COLUMNS)
    rows = np.arange(table.federation.users)
    return Node(PROBLEM, table.federation, first_user + rows, rows, [str(label) for label in table.labels])


def draw_silo(users: int, silo: int, silos: int, seed: int = 1) -> tuple[pd.DataFrame, int]:
    """Draw one to five visits of each person, and return the rows of one silo's people and its first user's number."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(users), rng.integers(1, 6, users))
    age, smokes = rng.uniform(20, 90, users)[person].round(1), (rng.random(users) < 0.3)[person]
    pressure = rng.normal(100 + 0.4 * age, 12).round(1)
    score = 0.05 * (age - 55) + 0.04 * (pressure - 122) + 1.5 * smokes - 0.5
    ill = rng.random(len(person)) < 1 / (1 + np.exp(-score))
    here = np.array_split(np.arange(users), silos)[silo]
    columns = {"age": age, "pressure": pressure, "smokes": smokes, "ill": ill}
    table = pd.DataFrame({"person": [f"insured-{number:06d}" for number in person], **columns})
    return table[np.isin(person, here)].replace({True: "yes", False: "no"}), int(here[0])

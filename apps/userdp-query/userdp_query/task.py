"""The questions, the columns that all silos declare, and the people of a silo: drawn in a simulation, or a table's."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from flwr.app import Context

from userdp import Node, read_table
from userdp.queries import TableQuery, table_query

# Public declarations. They are never taken from data, because the guarantee rests on them.
COLUMNS = {
    "user": "person",
    "features": ["age", "wait"],
    "ranges": {"age": [18.0, 98.0], "wait": [0.0, 240.0]},
    "categorical": {"ward": ["north", "south"]},
}
ASK = [
    {"statistic": "counts", "of": "ward"},
    {"statistic": "mean", "of": "age"},
    {"statistic": "group_means", "of": "wait", "by": "ward"},
    {"statistic": "quantiles", "of": "wait", "at": [0.5, 0.9], "weight": 2},
]


def make_query(trust: str) -> TableQuery:
    """Return the query; quantiles are choices among exact sums, which only a trusted server may see."""
    ask = [one for one in ASK if trust == "server" or one["statistic"] != "quantiles"]
    return table_query(ask, **COLUMNS)


def load_node(context: Context) -> Node:
    """Return the node of a silo, by the keys of its SuperNode's node-config."""
    config, trust = context.node_config, str(context.run_config["trust"])
    if "partition-id" in config and "num-partitions" in config:
        users, silos = int(context.run_config["num-users"]), int(config["num-partitions"])
        return simulated_silo(users, int(config["partition-id"]), silos, trust)
    return table_silo(Path(str(config["data-path"])), int(config["first-user"]), trust)


@lru_cache(maxsize=8)
def simulated_silo(users: int, silo: int, silos: int, trust: str) -> Node:
    """Write the simulated table of one silo, and read it as `table_silo` reads a real one."""
    table, first_user = draw_silo(users, silo, silos)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "people.csv"
        table.to_csv(path, index=False)
        return table_silo(path, first_user, trust)


@lru_cache(maxsize=8)
def table_silo(path: Path, first_user: int, trust: str) -> Node:
    """Read a CSV or Parquet table, whose people are ``first_user``, ``first_user + 1``, ... among all silos'."""
    table = read_table(path, **COLUMNS)
    rows = np.arange(table.federation.users)
    return Node(make_query(trust), table.federation, first_user + rows, rows, [str(label) for label in table.labels])


def draw_silo(users: int, silo: int, silos: int, seed: int = 1) -> tuple[pd.DataFrame, int]:
    """Draw one to five visits of each person, and return the rows of one silo's people and its first user's number."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(users), rng.integers(1, 6, users))
    age, ward = rng.uniform(20, 90, users)[person].round(1), np.where(rng.random(users) < 0.3, "north", "south")[person]
    wait = rng.gamma(2.0, np.where(ward == "north", 20.0, 30.0)).round(1)
    here = np.array_split(np.arange(users), silos)[silo]
    table = pd.DataFrame(
        {"person": [f"insured-{number:06d}" for number in person], "age": age, "wait": wait, "ward": ward}
    )
    return table[np.isin(person, here)], int(here[0])

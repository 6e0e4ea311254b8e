"""The problem, and the users of a node: drawn from a law in a simulation, read from a file in a deployment."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context

from userdp import Block, Logistic, Node, SyntheticFederation
from userdp.data import ColumnarFederation, LogisticRegression

SAMPLES = 20  # of each user; a public number
PROBLEM = Logistic(columns=3, feature_norm=1.0, radius=10.0)
POPULATION = LogisticRegression(dimension=3, parameter=[6.0, -4.0, 2.0])


def load_node(context: Context) -> Node:
    """Return the node of a SuperNode, by the keys of its node-config."""
    config = context.node_config
    if "partition-id" in config and "num-partitions" in config:
        users, nodes = int(context.run_config["num-users"]), int(config["num-partitions"])
        return simulated_node(users, int(config["partition-id"]), nodes)
    return stored_node(Path(str(config["data-path"])))


@lru_cache(maxsize=8)
def simulated_node(users: int, partition: int, partitions: int) -> Node:
    """Return the node of one block of the simulated users 0..users-1."""
    everybody = SyntheticFederation(POPULATION, users, seed=1, samples_per_user=SAMPLES)
    return Node(PROBLEM, everybody, np.array_split(np.arange(users), partitions)[partition])


@lru_cache(maxsize=8)
def stored_node(path: Path) -> Node:
    """Read a node's file, an .npz archive that `userdp_quickstart.demo` describes."""
    with np.load(path, allow_pickle=False) as stored:
        block = Block(stored["features"], stored["offsets"], stored["targets"])
        return Node(PROBLEM, ColumnarFederation(block), stored["users"], np.arange(block.users))


def accuracy(model: np.ndarray) -> float:
    """Return the share of 10,000 samples of other people that the model classifies correctly."""
    people = SyntheticFederation(POPULATION, 500, seed=1, samples_per_user=SAMPLES, first_user=10**6)
    block = people.block(np.arange(500))
    return float(((block.features @ model > 0) == block.targets).mean())

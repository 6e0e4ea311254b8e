"""What the Flower server and client apps share: which configuration a run means, and who holds whom.

Flower's run-config names a configuration file (``config``), overrides of it separated by ";" (``overrides``), and an
absolute folder for the results (``output``), because nothing but files comes back from a Flower run. In a deployment
(``deployed``) every node has a silo's folder of its own, named by its node-config (``silo``), and the server has none.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulations.config.run_config import RunConfig, load_config
from simulations.engines.grids import shards
from simulations.records.run_directory import new_directory
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.silos import silo_node
from userdp.data.source import Datasets
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.problems import Problem

if TYPE_CHECKING:
    from flwr.app import Context

_APP_ROOT = Path(__file__).resolve().parent.parent


def run_configuration(context: "Context") -> RunConfig:
    """The configuration that the run-config means; relative paths start at the app's own folder.

    Raises:
        BadInput: the configuration cannot be used.
    """
    path = Path(str(context.run_config.get("config", "")))
    return _configuration(str(path if path.is_absolute() else _APP_ROOT / path), _overrides(context))


def output_directory(context: "Context", config: RunConfig) -> Path:
    """Where the server app writes; ``~/userdp-runs`` if the run-config does not say.

    Raises:
        BadInput: noise is secure and a run of that name has released something; or a relative folder, which would lie
            wherever the SuperLink happens to have been started.
    """
    output = str(context.run_config.get("output", ""))
    if not output:
        first = Path.home() / "userdp-runs" / config.run_directory.name
        return new_directory(first, secure=config.privacy.noise == "secure")
    if not Path(output).is_absolute():
        raise BadInput(f"output = {output!r}: must be an absolute folder, for the app's own folder is Flower's")
    return Path(output)


def node_of(context: "Context") -> Node:
    """A silo's node, or a partition's: the users that the local and Ray grids give to the node of that number.

    Raises:
        BadInput: the silo's folder cannot be used.
    """
    path = Path(str(context.run_config.get("config", "")))
    absolute = str(path if path.is_absolute() else _APP_ROOT / path)
    if "silo" in context.node_config:
        return _silo(absolute, _overrides(context), str(context.node_config["silo"]))
    partition, partitions = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return _node(absolute, _overrides(context), partition, partitions)


def separated(overrides: str) -> tuple[str, ...]:
    """Overrides written in one line, such as "privacy.epsilon=1; seed=3"."""
    return tuple(part.strip() for part in overrides.split(";") if part.strip())


def _overrides(context: "Context") -> tuple[str, ...]:
    return separated(str(context.run_config.get("overrides", "")))


@lru_cache(maxsize=1)
def _configuration(path: str, overrides: tuple[str, ...]) -> RunConfig:
    return load_config(path, overrides)


@lru_cache(maxsize=1)
def _loaded(path: str, overrides: tuple[str, ...]) -> tuple[Problem, Datasets]:
    config = _configuration(path, overrides)
    return build_problem(config), load_datasets(config)


@lru_cache(maxsize=1)
def _silo(path: str, overrides: tuple[str, ...], folder: str) -> Node:
    config = _configuration(path, overrides)
    return silo_node(config, build_problem(config), Path(folder))


@lru_cache(maxsize=32)
def _node(path: str, overrides: tuple[str, ...], partition: int, partitions: int) -> Node:
    """Kept between messages: Flower loads the app anew for each, but not its modules."""
    problem, datasets = _loaded(path, overrides)
    blocks = shards(datasets.users.users, nodes=partitions)
    users = blocks[partition] if partition < len(blocks) else np.empty(0, dtype=np.int64)
    return Node(problem, datasets.users, users)

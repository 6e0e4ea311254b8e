"""Shared parts of the Flower server and client apps: the configuration of a run, and the users of a node.

Flower's run-config names a configuration file (``config``) or has its text (``settings``), overrides separated by ";"
(``overrides``), and an absolute folder for the results (``output``), because nothing but files comes back from a Flower
run. In a deployment
(``deployed``) every node has a silo's folder, named by its node-config (``silo``), and the server has none.
"""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulations.config.places import make_absolute
from simulations.config.run_config import RunConfig, load_config, parse_config
from simulations.engines.grids import populated, shards
from simulations.records.named_code import code_in
from simulations.records.run_directory import new_directory
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.silos import silo_node
from userdp.data.source import Datasets
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.problems import Problem

if TYPE_CHECKING:
    from flwr.app import Context

_Named = tuple[str, tuple[str, ...], str]  # the configuration's file, its overrides, and its text in place of a file
_APP_ROOT = Path(__file__).resolve().parent.parent


def run_configuration(context: "Context") -> RunConfig:
    """Read the configuration of the run-config; relative paths start at the app's own folder."""
    return _configuration(_named(context))


def output_directory(context: "Context", config: RunConfig) -> Path:
    """Return the folder that the server app writes; it is in ``~/userdp-runs`` if the run-config has no ``output``."""
    output = str(context.run_config.get("output", ""))
    if not output:
        first = Path.home() / "userdp-runs" / config.run_directory.name
        return new_directory(first, secure=config.privacy.noise == "secure")
    if not Path(output).is_absolute():
        raise BadInput(f"output = {output!r}: must be an absolute folder, because the app's own folder is Flower's")
    return Path(output)


def node_of(context: "Context") -> Node:
    """Return a silo's node, or a partition's: local and Ray grids give the same users to the node of that number."""
    if "silo" in context.node_config:
        return _silo(_named(context), str(context.node_config["silo"]))
    if context.run_config.get("deployed", False):
        raise BadInput("a deployment's node needs its silo: start the SuperNode with --node-config 'silo=\"FOLDER\"'")
    partition, partitions = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return _node(_named(context), partition, partitions)


def separated(overrides: str) -> tuple[str, ...]:
    """Split overrides in one line, such as "privacy.epsilon=1; seed=3"."""
    return tuple(part.strip() for part in overrides.split(";") if part.strip())


def configuration_of(text: str) -> RunConfig:
    """Read the text of a configuration, whose paths are relative to the app's simulations/configs; `BadInput` as there.

    Server and silos read it in their own copy of the app, so code that it names has to be part of the app: it is not
    imported from elsewhere.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"settings is not valid TOML: {error}") from None
    make_absolute(raw, _APP_ROOT / "simulations" / "configs")
    for field, place in code_in(raw).items():
        home = Path(place.rpartition(":")[0])
        if home.suffix == ".py" and not home.resolve().is_relative_to(_APP_ROOT):
            raise BadInput(f"{field} = {place!r}: the file is no part of the app; put it beside simulations/configs")
    return parse_config(raw)


def _named(context: "Context") -> _Named:
    file, text = str(context.run_config.get("config", "")), str(context.run_config.get("settings", ""))
    path = _APP_ROOT / file  # an absolute path replaces the root
    return str(path), separated(str(context.run_config.get("overrides", ""))), text


# Results are kept between messages: Flower loads the app anew for each message, but not its modules.


@lru_cache(maxsize=1)
def _configuration(named: _Named) -> RunConfig:
    path, overrides, text = named
    return configuration_of(text) if text else load_config(path, overrides)


@lru_cache(maxsize=1)
def _loaded(named: _Named) -> tuple[Problem, Datasets]:
    config = _configuration(named)
    return build_problem(config), load_datasets(config)


@lru_cache(maxsize=1)
def _silo(named: _Named, folder: str) -> Node:
    config = _configuration(named)
    return silo_node(config, build_problem(config), Path(folder))


@lru_cache(maxsize=32)
def _node(named: _Named, partition: int, partitions: int) -> Node:
    problem, datasets = _loaded(named)
    evaluate = bool(_configuration(named).privacy.evaluate)
    federation, blocks = populated(datasets, shards(datasets.users.users, nodes=partitions), evaluate=evaluate)
    users = blocks[partition] if partition < len(blocks) else np.empty(0, dtype=np.int64)
    return Node(problem, federation, users)

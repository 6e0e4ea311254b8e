"""The Flower app apps/userdp-run: ``userdp run`` on Flower's grid, and the users of a node.

Flower's run-config names a configuration file (``config``) or has its text (``settings``), changes keys of it
(``epsilon``, ``set.strategy.rounds``; an empty text leaves the file's value), and names an absolute folder for the
results (``output``), because nothing but files comes back from a Flower run. In a deployment (``deployed``) every node
has a silo's folder, named by its node-config (``silo``), and the server has none.
"""

import json
import logging
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.config.places import make_absolute
from simulations.config.run_config import RunConfig, load_config, overridden, parse_config, read_absolute
from simulations.engines.grids import populated, shards
from simulations.records.checkpoints import in_use
from simulations.records.named_code import code_in
from simulations.records.run_directory import ended, new_directory, resumable
from simulations.runs.build import build_problem, load_datasets
from simulations.runs.folder import conclude
from simulations.runs.run import run
from simulations.runs.silos import silo_node
from userdp.data.source import Datasets
from userdp.errors import BadInput
from userdp.kinds import registering
from userdp.nodes.node import Node
from userdp.problems import Problem

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

__all__ = ["main", "node_of"]

log = logging.getLogger("userdp")
# The configuration's file, its overrides, its text in place of a file, and whether somebody else chose them.
_Named = tuple[str, tuple[str, ...], str, bool]
_ROOT, _PACKAGES = Path(__file__).resolve().parent.parent, ("userdp", "strategies", "simulations")
_SHORT = {
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "seed": "seed",
    "roster_timeout": "engine.roster_timeout",
}
"""Keys of the run-config that need no ``set.``."""


def main(grid: "Grid", context: "Context") -> None:
    """Run the configuration and write its run directory; resume a run that was killed there. For a ``ServerApp``."""
    if not log.handlers:
        # Flower sends printed lines to `flwr log`; the root logger would repeat Flower's own lines.
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    config = run_configuration(context)
    deployed = bool(context.run_config.get("deployed", False))
    directory = output_directory(context, config)
    if deployed and ended(directory) and resumable(directory) and not in_use(directory):
        conclude(directory, config)  # it was killed before its report
        return
    if deployed and ended(directory):
        raise BadInput(f"{directory} holds a run that has ended: it was submitted twice, and is not run again")
    outcome = run(
        config,
        grid=grid,
        directory=directory,
        deployed=deployed,
        checkpoint=deployed or config.output.checkpoint,
        resume=resumable(directory),
    )
    log.info("results are in %s", outcome.directory)


def run_configuration(context: "Context") -> RunConfig:
    """Read the configuration of the run-config; relative paths start where userdp is installed."""
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


def configuration_of(text: str, changes: tuple[str, ...] = ()) -> RunConfig:
    """Read the text of a configuration, whose paths are relative to simulations/configs; `BadInput` as there.

    Server and silos read it each with the userdp that they have installed, so code that it names has to be part of
    that: it is not imported from elsewhere.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"settings is not valid TOML: {error}") from None
    make_absolute(overridden(raw, changes), _ROOT / "simulations" / "configs")
    return _with_own_code(raw)


def _with_own_code(raw: dict[str, Any]) -> RunConfig:
    """Check the values of a configuration, without importing anything that it names.

    Raises `BadInput` for code that is neither a file of userdp nor of a package that the holder of this machine has
    installed as one that registers kinds of userdp.
    """
    for field, place in code_in(raw).items():
        home = place.rpartition(":")[0]
        if home.endswith(".py"):  # the folder around userdp may be that of all installed packages
            own = any(Path(home).resolve().is_relative_to(_ROOT / name) for name in _PACKAGES)
        else:
            own = home.partition(".")[0] in registering()
        if not own:
            raise BadInput(
                f"{field} = {place!r}: this code is no part of userdp, and of no package that registers kinds of "
                "userdp; put a file of it beside simulations/configs"
            )
    return parse_config(raw)


def _named(context: "Context") -> _Named:
    asked = context.run_config
    path = _ROOT / str(asked.get("config", ""))  # an absolute path replaces the root
    given = {_SHORT.get(key) or key.removeprefix("set."): value for key, value in asked.items() if _changes(key, value)}
    written = (value if isinstance(value, str) else json.dumps(value) for value in given.values())
    changes = tuple(f"{key}={value}" for key, value in zip(given, written, strict=True))
    foreign = bool(asked.get("deployed", False)) or "silo" in context.node_config
    return str(path), changes, str(asked.get("settings", "")), foreign


def _changes(key: str, value: str | int | float | bytes) -> bool:
    return value != "" and (key in _SHORT or key.startswith("set."))


# Results are kept between messages: Flower loads the app anew for each message, but not its modules.


@lru_cache(maxsize=1)
def _configuration(named: _Named) -> RunConfig:
    path, changes, text, foreign = named
    if text:
        return configuration_of(text, changes)
    if not foreign:
        return load_config(path, changes)
    return _with_own_code(read_absolute(Path(path), changes))


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

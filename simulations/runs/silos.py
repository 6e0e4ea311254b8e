"""A silo: the folder of a hospital, a school or a company, with the data of its own users and of nobody else.

``users.npz`` holds the samples of the silo's users in the form that a node computes on (`userdp.data.Block`), the
users' numbers among all n, and their labels. The numbers of all silos together must be 0..n-1, each once; the server
refuses anything else, and labels that occur twice. It also says what it was made for, people or a simulation, and by
which declarations. A silo of people answers what its own policy accepts (`simulations.runs.policy`), and nothing else.
"""

import logging
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulations.config.run_config import RunConfig
from simulations.engines.grids import populated, shards
from simulations.records.run_directory import private_folder, write_arrays, writing
from simulations.runs.build import hides_number, load_datasets
from simulations.runs.policy import PolicyDoor, digest, write_policy
from userdp.data import Block, ColumnarFederation, Federation
from userdp.data.federation import JoinedFederation
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.problems import Problem

log = logging.getLogger("userdp")
FILE = "users.npz"
PEOPLE, SIMULATION = "people", "simulation"
_ARRAYS = ("features", "offsets", "users", "labels")
_MADE = ("made_for", "declarations")
_AGAIN = "make it again with python -m simulations.deployment split or prepare"


def split(config: RunConfig, folders: Sequence[Path]) -> list[int]:
    """Deal the users of the configured data to silos, in even blocks; return the users of each silo.

    This is a rehearsal: in a real federation nobody has the data of all silos, and each runs `prepare` on its table.
    BadInput if the data cannot be used, or hold out users, who would be in no silo.
    """
    federation, labels = _people(config)
    blocks = shards(federation.users, nodes=len(folders))
    if config.data.simulated:  # numbers held-out users last, and no silo should hold all of them
        datasets = load_datasets(config)
        training = shards(datasets.users.users, nodes=len(folders))
        _, blocks = populated(datasets, training, evaluate=bool(config.privacy.evaluate))
    if len(blocks) < len(folders):
        raise BadInput(f"{len(folders)} silos for {federation.users} users: some would hold nobody; make fewer silos")
    for folder, users in zip(folders, blocks, strict=True):
        _write(config, folder, federation.block(users), users, labels[users])
    return [len(users) for users in blocks]


def prepare(config: RunConfig, folder: Path, first: int) -> int:
    """Make the folder of one silo from its own table, and return its number of users.

    data.path is the silo's own table, and data.users the (public) number of users that it has promised; BadInput if it
    has fewer. ``first`` is the number of its first user among those of all silos, who agree on it.
    """
    federation, labels = _people(config)
    here = np.arange(federation.users)
    _write(config, folder, federation.block(here), first + here, labels)
    return federation.users


def silo_node(config: RunConfig, problem: Problem, folder: Path) -> Node:
    """Build the node of a silo's folder; BadInput if it was not made for this configuration.

    Of people's data the node has a door, which admits the runs that the folder's policy accepts; a configuration that
    it cannot accept is refused here.

    If a user has more samples than declared, the first ones count. The number of one user's samples must not decide
    whether the silo takes part: all its users would be missing because of that one.
    """
    block, users, labels, (made_for, declarations) = _read(folder / FILE)
    door = None if made_for == SIMULATION else PolicyDoor(folder, declarations)
    if door is not None:
        door.consider(config)
    fewest, most = config.data.sample_limits
    if most is not None:
        _, first = block.thinned(np.arange(block.samples) - np.repeat(block.offsets[:-1], block.sizes) < most)
        block = block if first is None else first
    if block.sizes.min() < fewest:
        log.warning("%s: a user holds fewer samples than data.min_samples = %d", folder / FILE, fewest)
    numbers = config.data.numbers(config.seed) if config.privacy.evaluate else None
    users = users if numbers is None else numbers[users]
    places = np.argsort(users)
    if config.data.simulated and not config.privacy.evaluate:
        # The folder may be made for a run with private evaluation, and hold users whom this one does not ask.
        held_out = users - config.data.declared_users
        places = places[(held_out[places] < 0) | (held_out[places] >= (config.data.declared_held_out or 0))]
    if not np.array_equal(places, np.arange(len(users))):
        users, block = users[places], ColumnarFederation(block).block(places)
        labels = [labels[place] for place in places]
    columns = config.data.sample_shape.columns
    if block.features.shape[1] != columns:
        there = block.features.shape[1]
        raise BadInput(f"{folder / FILE}: samples have {there} columns, and {columns} are declared; make it again")
    node = Node(problem, ColumnarFederation(block), users, np.arange(len(users)), labels)
    node.door = door
    return node


def _people(config: RunConfig) -> tuple[Federation, NDArray[np.str_]]:
    data = config.data
    if data.simulated:
        datasets = load_datasets(config)
        federation = datasets.users
        if config.privacy.evaluate and datasets.test is not None:
            federation = JoinedFederation(federation, datasets.test)
        return federation, np.array([f"{data.called}-{user}" for user in range(federation.users)])
    hidden = partial(_hides_number, config)
    if config.privacy.evaluate:  # who is held out is decided later, by the numbers of all users
        config = config.model_copy(update={"data": data.everybody()})
    elif data.holds_out:
        raise BadInput(
            f"{data.holds_out}: held-out users would be in no silo; set privacy.evaluate = true, with which they "
            "evaluate models, or data.test_fraction = 0"
        )
    federation = load_datasets(config, hidden).users
    labels = config.data.labels(config.seed)[: federation.users]
    return federation, labels.astype(np.str_)


def _hides_number(config: RunConfig) -> bool:
    """Return whether the number of users is protected, as far as a plan can be made for those of one silo."""
    try:
        return hides_number(config)
    except BadInput:
        return False  # only the holder of the silo's table reads what follows


def _write(config: RunConfig, folder: Path, block: Block, users: NDArray[np.int64], labels: NDArray[np.str_]) -> None:
    made_for = SIMULATION if config.data.simulated else PEOPLE
    arrays = {"features": block.dense_features, "offsets": block.offsets, "users": users, "labels": labels}
    arrays |= {"made_for": np.array(made_for), "declarations": np.array(digest(config))}
    beside = {"targets": block.targets, "terms": block.terms}
    arrays |= {name: values for name, values in beside.items() if values is not None}
    with writing(str(folder / FILE)):
        private_folder(folder)
        if made_for == PEOPLE:
            write_policy(config, folder)
        write_arrays(folder / FILE, arrays)


def _read(path: Path) -> tuple[Block, NDArray[np.int64], list[str], tuple[str, str]]:
    """Return a silo's samples, its users and their labels, and what it was made for and the digest of by what."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            features, offsets, users, labels = (stored[name] for name in _ARRAYS)
            targets, terms = stored.get("targets"), stored.get("terms")
            made = tuple(str(stored[name]) if name in stored else None for name in _MADE)
        block, names = Block(features, offsets, targets, terms=terms), [str(label) for label in labels]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is not the file of a silo ({type(error).__name__}); {_AGAIN}") from None
    made_for, declarations = made
    if made_for not in (PEOPLE, SIMULATION) or declarations is None:
        raise BadInput(f"{path} does not say whether it holds people, as older versions' files do not; {_AGAIN}")
    return block, users.astype(np.int64), names, (made_for, declarations)

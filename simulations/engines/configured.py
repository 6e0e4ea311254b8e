"""The grid that a configuration asks for."""

from simulations.config.run_config import RunConfig
from simulations.engines.grids import MOST_NODES, InMachineGrid, LocalGrid, populated, shards, worthwhile_nodes
from simulations.engines.ray_grid import RayGrid
from userdp.data.source import Datasets
from userdp.nodes.node import Node
from userdp.problems import Problem


def make_grid(config: RunConfig, problem: Problem, datasets: Datasets) -> InMachineGrid:
    """Return the configured grid, a context in which its nodes answer."""
    engine, train = config.engine, datasets.users
    # Masks hide nothing unless several nodes share a sum.
    nodes = MOST_NODES if config.privacy.trust == "sum" else worthwhile_nodes(problem, train)
    blocks = shards(train.users, engine.users_per_node, nodes=nodes)
    places = config.data.declared_users or train.users
    train, blocks = populated(datasets, blocks, evaluate=bool(config.privacy.evaluate), places=places)
    if engine.kind == "ray":
        return RayGrid(problem, train, blocks, engine.workers, engine.address, engine.gpus_per_actor)
    return LocalGrid([Node(problem, train, users) for users in blocks])

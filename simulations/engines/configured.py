"""The grid that a configuration asks for."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.serverapp import Grid

from simulations.config.run_config import RunConfig
from simulations.engines.grids import MOST_NODES, LocalGrid, populated, shards, worthwhile_nodes
from simulations.engines.ray_grid import RayGrid
from userdp.data.source import Datasets
from userdp.nodes.node import Node
from userdp.problems import Problem


@contextmanager
def make_grid(config: RunConfig, problem: Problem, datasets: Datasets) -> Iterator[Grid]:
    """Yield the configured grid, its nodes ready to answer; close it afterwards."""
    engine, train = config.engine, datasets.users
    # Masks hide nothing unless several nodes share a sum.
    nodes = MOST_NODES if config.privacy.trust == "sum" else worthwhile_nodes(problem, train)
    blocks = shards(train.users, engine.users_per_node, nodes=nodes)
    places = config.data.declared_users or train.users
    train, blocks = populated(datasets, blocks, evaluate=bool(config.privacy.evaluate), places=places)
    if engine.kind == "ray":
        grid: LocalGrid | RayGrid = RayGrid(
            problem, train, blocks, engine.workers, engine.address, engine.gpus_per_actor
        )
    else:
        grid = LocalGrid([Node(problem, train, users) for users in blocks])
    with grid:
        yield grid


def engine_of(grid: Grid) -> str:
    """Return the name of a grid's engine."""
    return {LocalGrid: "local", RayGrid: "ray"}.get(type(grid), "flower")

"""Make demo data for a deployment: ``python -m userdp_quickstart.demo FOLDER NODES USERS``.

Writes node-1.npz, node-2.npz, ... with these arrays: ``users`` (U,) rising numbers of the node's users among those of
all nodes, which together are 0..n-1, each once; ``features`` (N, 3) float32; ``targets`` (N,) float32, 0 or 1; and
``offsets`` (U + 1,): user u owns rows offsets[u] to offsets[u + 1]. Prints the node-config of each SuperNode.
"""

import sys
from pathlib import Path

import numpy as np

from userdp import SyntheticFederation
from userdp_quickstart.task import POPULATION, SAMPLES


def write(folder: Path, nodes: int, users: int) -> list[str]:
    """Deal the users to files, one a node, and return the node-config of each SuperNode."""
    folder.mkdir(parents=True, exist_ok=True)
    everybody = SyntheticFederation(POPULATION, users, seed=2, samples_per_user=SAMPLES)
    paths = [folder.resolve() / f"node-{number}.npz" for number in range(1, nodes + 1)]
    for path, part in zip(paths, np.array_split(np.arange(users), nodes), strict=True):
        block = everybody.block(part)
        np.savez(path, users=part, features=block.features, targets=block.targets, offsets=block.offsets)
    return [f'data-path="{path}"' for path in paths]


if __name__ == "__main__":
    print("\n".join(write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

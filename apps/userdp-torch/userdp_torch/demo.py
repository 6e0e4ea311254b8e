"""Make demo data for a deployment: ``python -m userdp_torch.demo FOLDER USERS``.

Writes user-1.npz, user-2.npz, ..., one a SuperNode: ``pictures`` (examples, 1, 8, 8) float32, ``labels`` (examples,).
Prints the node-config of each SuperNode.
"""

import sys
from pathlib import Path

import numpy as np

from userdp_torch.task import draw_pictures


def write(folder: Path, users: int) -> list[str]:
    """Write each user's file, and return the node-config of each SuperNode."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder.resolve() / f"user-{number}.npz" for number in range(1, users + 1)]
    for number, path in enumerate(paths, start=1):
        pictures, labels = draw_pictures(seed=10_000 + number)
        np.savez(path, pictures=pictures, labels=labels)
    return [f'data-path="{path}"' for path in paths]


if __name__ == "__main__":
    print("\n".join(write(Path(sys.argv[1]), int(sys.argv[2]))))

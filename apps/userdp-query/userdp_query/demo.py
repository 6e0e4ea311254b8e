"""Make demo tables for a deployment: ``python -m userdp_query.demo FOLDER SILOS PEOPLE``.

Writes silo-1.csv, silo-2.csv, ... and prints the node-config of each silo's SuperNode.
"""

import sys
from pathlib import Path

from userdp_query.task import draw_silo


def write(folder: Path, silos: int, people: int) -> list[str]:
    """Deal the people to tables, one a silo, and return the node-config of each."""
    folder.mkdir(parents=True, exist_ok=True)
    configs = []
    for silo in range(silos):
        table, first_user = draw_silo(people, silo, silos, seed=3)
        path = folder.resolve() / f"silo-{silo + 1}.csv"
        table.to_csv(path, index=False)
        configs.append(f'data-path="{path}" first-user={first_user}')
    return configs


if __name__ == "__main__":
    print("\n".join(write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

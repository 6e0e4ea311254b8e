"""A silo that lies: Python loads this before anything else, and the lie enters the node once that is imported.

The file "kind" in the folder LIES names lies separated by commas, one for each train message in turn; "claims" and
"twin" come at the query, and "version" is that of the protocol. Without that folder nothing happens.
"""

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("LIES", "/lies"))
KIND, TOLD = FOLDER / "kind", FOLDER / "told"


def lies():
    return KIND.read_text().strip().split(",") if KIND.is_file() else [""]


def lie(answer):
    from dataclasses import replace

    import numpy as np

    told = len(TOLD.read_text()) if TOLD.is_file() else 0
    TOLD.write_text("x" * (told + 1))
    kinds, values = lies(), answer.values
    users, kind = answer.users, kinds[told % len(kinds)]
    if kind == "nan":
        values = values * np.nan
    elif kind == "shape":
        values = values[:, :-1]
    elif kind == "more":
        users = np.arange(len(users) + 500)
    return replace(answer, users=users, values=values)


def corrupt(module):
    import numpy as np

    node, honest = module.Node, module.Node.compute

    class LyingNode(node):
        def __init__(self, problem, federation, users, rows=None, labels=None):
            if "claims" in lies():
                users = np.sort(np.append(users[1:], 0))
            if "twin" in lies():
                labels = ["synthetic-0", *labels[1:]]
            super().__init__(problem, federation, users, rows, labels)

        def compute(self, *arguments):
            return lie(honest(self, *arguments))

    module.Node = LyingNode


def age(module):
    if "version" in lies():
        module.PROTOCOL = 0


VICTIMS = {"userdp.nodes.node": corrupt, "strategies.wire.questions": age}


class Finder:
    def find_spec(self, name, path, target=None):
        change = VICTIMS.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


if FOLDER.is_dir():
    sys.meta_path.insert(0, Finder())

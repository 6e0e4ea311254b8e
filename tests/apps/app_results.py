"""The apps of the folder apps in this process, and the tables of results in their READMEs.

    python tests/apps/app_results.py [APP]     runs each row of each table five times and writes the tables (minutes)

Noise comes from the operating system, so that no two runs are equal: a table gives medians and ranges.
"""

import json
import math
import re
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
APPS = {path.name: path for path in sorted((ROOT / "apps").iterdir()) if path.is_dir()}
sys.path[:0] = [entry for entry in map(str, (ROOT, HERE.parent, *APPS.values())) if entry not in sys.path]

from helpers_flower import ClientGrid  # noqa: E402

from userdp import read_table  # noqa: E402

Settings = Mapping[str, str | int | float]
NODES = {"userdp-query": 3, "userdp-quickstart": 2, "userdp-run": 8, "userdp-silos": 3, "userdp-torch": 100}
"""SuperNodes of the simulations behind the tables."""
ROWS: dict[str, list[Settings]] = {
    "userdp-query": [{}, {"epsilon": 0.2}, {"trust": "sum"}],
    "userdp-quickstart": [{}, {"epsilon": 0.05}, {"strategy": "auto"}, {"strategy": "auto", "epsilon": 0.2}],
    "userdp-run": [{}, {"epsilon": 0.2}, {"set.strategy.kind": "dp_fed_sgd", "set.strategy.rounds": 20}],
    "userdp-silos": [{}, {"epsilon": 0.05}],
    "userdp-torch": [
        {},
        {"strategy": "adaptive_clipping"},
        {"strategy": "recentred_clipping"},
        {"epsilon": 1.0},
    ],
}
"""The changes to the app's run-config for each row of a table; the first row changes nothing."""
MEASURES = {"userdp-query": "half of the interval", "userdp-run": "distance"}
"""The measure of a table, where it is not an accuracy."""
RUNS = 5
_BEGIN, _END = "<!-- results: made by tests/apps/app_results.py -->\n", "<!-- end -->\n"


def project(app: str) -> dict:
    """The app's pyproject.toml."""
    return tomllib.loads((APPS[app] / "pyproject.toml").read_text(encoding="utf-8"))


def defaults(app: str) -> dict[str, str | int | float]:
    """The app's run-config, with dotted keys as Flower has them."""
    return flatten_dict(project(app)["tool"]["flwr"]["app"]["config"])


def part(app: str, module: str):
    """A module of the app, such as its task."""
    return import_module(f"{app.replace('-', '_')}.{module}")


def run_here(app: str, nodes: int, changes: Settings) -> None:
    """Run the app's ServerApp with its ClientApps in this process."""
    run_config = defaults(app) | dict(changes)
    with ClientGrid(part(app, "client_app").app, nodes, run_config) as grid:
        part(app, "server_app").app(grid, Context(1, 0, {}, RecordDict(), run_config))


def distance(changes: Settings) -> float:
    """The distance between the mean of one run of userdp-run and the population's; its noise has a seed."""
    with tempfile.TemporaryDirectory() as folder:
        run_here("userdp-run", NODES["userdp-run"], {**changes, "output": f"{folder}/run"})
        result = json.loads((Path(folder) / "run" / "result.json").read_text(encoding="utf-8"))
        return math.sqrt(2 * result["metrics"]["excess_risk"])


def width_of_the_age(changes: Settings) -> float:
    """Half of the interval around userdp-query's mean age, in years; its error is noise, and differs in every run."""
    with tempfile.TemporaryDirectory() as folder:
        run_here("userdp-query", NODES["userdp-query"], {**changes, "output": folder})
        answers = pd.read_csv(Path(folder) / "answers.csv")
    mean = answers[answers["statistic"] == "mean"]
    return (mean["high"] - mean["low"]).item() / 2


def measured(app: str, changes: Settings, number: int = 1) -> float:
    """The measure of one run: for most apps the accuracy of its model, on data of nobody who took part."""
    if app == "userdp-run":
        return distance({**changes, "seed": number})
    if app == "userdp-query":
        return width_of_the_age(changes)
    task = part(app, "task")
    with tempfile.TemporaryDirectory() as folder:
        run_here(app, NODES[app], {**changes, "output": folder})
        with np.load(Path(folder) / "model.npz") as stored:
            if app == "userdp-torch":
                model = task.make_model()
                model.load_state_dict({name: torch.from_numpy(stored[name]) for name in stored})
                return task.accuracy(model)
            return accuracy_at_silos(stored["x"]) if app == "userdp-silos" else task.accuracy(stored["x"])


def accuracy_at_silos(model: np.ndarray) -> float:
    """The same for userdp-silos, whose server has no data: of the visits of 1000 other simulated people."""
    task = part("userdp-silos", "task")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "others.csv"
        task.draw_silo(1000, 0, 1, seed=2)[0].to_csv(path, index=False)
        others = read_table(path, **task.COLUMNS).federation.block(np.arange(1000))
    block, _ = task.PROBLEM.bound(others)
    return float(((block.features @ model > 0) == block.targets).mean())


def told(changes: Settings) -> str:
    """The changes of a row, as `--run-config` takes them."""
    words = (f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in changes.items())
    return f"`{' '.join(words)}`" if changes else "the defaults"


def table_of(app: str) -> str:
    """The table of results, made by running the app."""
    lines = [
        f"| run-config | {MEASURES.get(app, 'accuracy')}, median of {RUNS} runs | lowest | highest |",
        "|---|---|---|---|",
    ]
    for changes in ROWS[app]:
        found = [measured(app, changes, number) for number in range(1, RUNS + 1)]
        numbers = (statistics.median(found), min(found), max(found))
        lines.append(f"| {told(changes)} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(lines)


def results_of(app: str) -> dict[str, tuple[float, float, float]]:
    """The rows of the README's table: what is changed, and the median, lowest and highest accuracy."""
    _, _, rest = (APPS[app] / "README.md").read_text(encoding="utf-8").partition(_BEGIN)
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", rest.partition(_END)[0], re.MULTILINE)
    return {changes: tuple(map(float, numbers)) for changes, *numbers in rows}


def main(apps: list[str]) -> None:
    """Write the tables of READMEs, of all if none is named."""
    torch.set_num_threads(1)
    for app, folder in APPS.items():
        if apps and app not in apps:
            continue
        page = folder / "README.md"
        before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
        _, end, after = rest.partition(_END)
        page.write_text(f"{before}{begin}\n{table_of(app)}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

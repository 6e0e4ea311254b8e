"""A federation to keep, in this process: a SuperLink that runs what was submitted when a test says so."""

import json
import logging
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomli_w
from helpers_silos import Patient

from simulations import flower
from simulations.account.accounts import Accounts
from simulations.flower import configuration_of
from simulations.runs.build import build_problem
from simulations.runs.silos import silo_node, split
from simulations.serving.queue import Queue
from userdp.errors import RunFailed, UserdpError

SETTINGS: dict[str, Any] = {
    "name": "monthly",
    "problem": {"kind": "logistic", "radius": 1.0},
    "data": {
        "kind": "synthetic",
        "population": "logistic_regression",
        "users": 12,
        "test_users": 4,
        "samples_per_user": 2,
        "dimension": 2,
        "feature_norm": 1.0,
        "parameter_norm": 1.0,
    },
    "privacy": {"epsilon": 1.0, "delta": 1e-3, "account": "clinic"},
    "strategy": {"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0, "learning_rate": 0.1},
    "output": {"anyway": True, "reference": False},
}


def text(*, roster_timeout: float = 0.1, **privacy: Any) -> str:
    more = {"privacy": SETTINGS["privacy"] | privacy, "engine": {"roster_timeout": roster_timeout}}
    return tomli_w.dumps(SETTINGS | more)


def nobody() -> None:
    """Happens at every moment of a test that kills nothing."""


@contextmanager
def logging_of_this_process() -> Iterator[None]:
    """The app sets up its own, in a process of its own."""
    log = logging.getLogger("userdp")
    handlers, level = log.handlers[:], log.level
    try:
        yield
    finally:
        log.handlers[:] = handlers
        log.setLevel(level)


@dataclass
class Federation:
    """A `Link` and its SuperLink: submissions wait until `advance` runs them."""

    home: Path
    moment: Callable[[], None] = nobody
    nodes: dict[str, str] = field(default_factory=lambda: {"11": "online", "12": "online"})
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    away: bool = False

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)

    def ask(self, *arguments: str) -> dict[str, Any]:
        self.moment()
        answer = self._answer(*arguments)
        self.moment()
        return answer

    def _answer(self, verb: str, *rest: str) -> dict[str, Any]:
        if self.away:
            raise RunFailed("the SuperLink did not answer")
        if verb == "supernode":
            return {"nodes": [{"node-id": node, "status": status} for node, status in self.nodes.items()]}
        if verb == "stop":
            self.runs[rest[0]]["status"] = "finished:stopped"
            return {"success": True}
        if verb == "ls":
            return {"runs": [{"run-id": number, "status": run["status"]} for number, run in self.runs.items()]}
        number = str(len(self.runs) + 1)
        self.runs[number] = {"status": "pending", **tomllib.loads(Path(rest[-1]).read_text())}
        return {"run-id": number}

    def advance(self) -> None:
        """Run what is pending, as the ServerApp does."""
        for number, run in self.runs.items():
            if run["status"] != "pending":
                continue
            config = configuration_of(run["settings"])
            silos = [self.home / name for name in "ab"]
            split(config, silos)
            problem = build_problem(config)
            with Patient([silo_node(config, problem, silo) for silo in silos]) as grid:
                try:
                    with logging_of_this_process():
                        flower.main(grid, SimpleNamespace(run_config=run))
                except UserdpError as error:
                    run["status"] = f"finished:failed {error}"
                else:
                    run["status"] = "finished:completed"
                    self.trained.append(number)

    def forget(self) -> None:
        """Restart: the SuperLink's memory is gone."""
        self.runs.clear()


def queue_of(accounts: str) -> Queue:
    return Queue(Accounts(accounts))


def report_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))

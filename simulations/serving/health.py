"""The health of a federation: what its keeper did last, and the last look at it, for readers who wait for neither."""

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from simulations.deployment.submit import Link
from simulations.records.run_directory import read_json
from userdp.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from simulations.serving.overview import Overview

log = logging.getLogger("userdp.serve")
DATABASE, LINK = "The database cannot be used", "The SuperLink does not answer"
DISK, HALTED, SILENT = "The disk cannot be written", "The keeper does not move", "The run under way does not move"
OLD, UNSEEN, FAILED = "The last look is too old", "Nothing was seen yet", "The last look failed"
_FULL = 0.01  # share of the disk that is free when nothing more fits
_LOOKS = 4  # of which one asks the SuperLink, too: that starts a process of Flower's


@dataclass
class Pulse:
    """The keeper's last signs of life, by a clock that nobody sets."""

    seconds: float = 300.0  # without a step, or a look, after which nobody knows
    last: float = field(default_factory=monotonic)  # when a step ended
    trouble: str | None = None  # of that step
    limit: float = math.inf  # seconds without a sign of the run under way, after which it is stopped
    _sign: object = None  # the last one; None if no run is under way
    _since: float = 0.0

    def beat(self, trouble: str | None = None) -> None:
        """Write down that a step ended, and what kept it from doing anything."""
        self.last, self.trouble = monotonic(), trouble

    def follow(self, sign: object, limit: float = math.inf) -> float:
        """Write down what the run under way shows; return for how many seconds it has shown nothing else."""
        if sign != self._sign:
            self._since, self._sign = monotonic(), sign
        self.limit = limit
        return monotonic() - self._since

    @property
    def silent(self) -> float | None:
        """Seconds since the last sign of the run under way; None without a run."""
        return None if self._sign is None else monotonic() - self._since

    def problems(self) -> list[str]:
        """Return what is wrong with the keeper or its run; nothing is waited for."""
        halted, silent = monotonic() - self.last > self.seconds, (self.silent or 0.0) > self.limit
        return [told for told, so in ((self.trouble, True), (HALTED, halted), (SILENT, silent)) if told and so]


class Watch:
    """Looks at a federation again and again, in one thread; readers take the last look as a whole, without a lock.

    Args:
        look: makes an `Overview`; it may raise anything, or last.
        nodes: asks the SuperLink which silos are connected, likewise.
        pulse: the keeper's.
    """

    def __init__(self, look: Callable[[], "Overview"], nodes: Callable[[], Mapping[str, bool]], pulse: Pulse) -> None:
        self._look, self._ask, self.pulse = look, nodes, pulse
        self.seen: Overview | None = None
        self._at = monotonic()
        self._nodes: Mapping[str, bool] | None = None
        self._faults: dict[str, str | None] = {}

    @property
    def age(self) -> float:
        """Seconds since the last look that was one; since the beginning without one."""
        return monotonic() - self._at

    def look(self, *, ask: bool = True) -> None:
        """Look once, and ``ask`` the SuperLink, too; whatever fails is a problem, and no error."""
        if ask:
            self._faults["nodes"] = self._tried(self._connected)
        self._faults["look"] = self._tried(self._see)

    def follow(self, pause: float) -> None:
        """Look for ever, with so many seconds between looks."""
        for turn in itertools.count():
            self.look(ask=turn % _LOOKS == 0)
            sleep(pause)

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong, in sentences without a name or a number; nothing is waited for."""
        seen, found = self.seen, [*self.pulse.problems(), *filter(None, self._faults.values())]
        others = {
            UNSEEN: seen is None,
            OLD: self.age > self.pulse.seconds,
            DISK: seen is not None and seen.free < _FULL * seen.disk,
        }
        return tuple(dict.fromkeys([*found, *(told for told, so in others.items() if so)]))

    def _connected(self) -> None:
        self._nodes = self._ask()

    def _see(self) -> None:
        self.seen = replace(self._look(), nodes=self._nodes)
        self._at = monotonic()

    def _tried(self, act: Callable[[], None]) -> str | None:
        try:
            act()
        except RunFailed:
            return LINK
        except BadInput:
            return DATABASE
        except Exception as error:
            log.warning("a look failed (%s)", type(error).__name__)
            return FAILED
        return None


def connected(link: Link, names: Path | None) -> dict[str, bool]:
    """Return each silo's SuperNode, by its name in the file ``names`` if it has one, and whether it is connected.

    A SuperNode has no data: whether it is connected says nothing about anybody's. `RunFailed` if the SuperLink does not
    answer.
    """
    named = read_json(names) if names is not None and names.is_file() else {}
    nodes = link.ask("supernode", "ls", "LINK")["nodes"]
    present = [node for node in nodes if node["status"] != "unregistered"]
    return {named.get(str(node["node-id"]), str(node["node-id"])): node["status"] == "online" for node in present}

"""Runs of other data that release the same: all that anybody sees of them must be the same, bit for bit.

Noise is recorded in one run and its outcomes are given to the others. What differs all the same is an exact function of
private data, which leaves by another door than the noise.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from helpers_adversaries import Overheard, fields_of

from simulations.testing.tape import Draw, Tape
from strategies import UserLevelStrategy
from strategies.core.recipe import notes_of
from userdp.accounting import Cost
from userdp.data import Federation
from userdp.errors import UserdpError
from userdp.masking.masks import MaskKey
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import LocalNoise
from userdp.nodes.node import Node
from userdp.streams import Streams

ROUNDING = 1e-9
NODES = 3
FRESH = {"question.salt"}
"""Values that the operating system draws for each run, without any user's data."""
MEASURED = {"seconds", "missing_users", "non_finite_users"}
"""Fields of a record about machines, and for the holder of the data alone."""
Seen = list[tuple[str, Any]]


@dataclass
class View:
    """The draws of a run, and the values that it showed, in order."""

    tape: Tape
    seen: Seen = field(default_factory=list)
    ended: str = ""

    def show(self, name: str, value: Any) -> None:
        self.seen.append((name, plain(value)))


def plain(value: Any) -> Any:
    """The value as one that can be compared to the bit."""
    if isinstance(value, Array):
        return value.dtype, tuple(value.shape), bytes(value.data)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict | ArrayRecord) or hasattr(value, "items"):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    return repr(value) if isinstance(value, float) else value


@contextmanager
def taped(tape: Tape) -> Iterator[None]:
    """All noise within goes by the tape: the server's, users' own, and that of sums to which nodes add it."""
    begin, add, values, secret = Streams.__init__, LocalNoise.add, MaskedSum.values, MaskKey.__init__
    keys = iter(range(1, 1 << 30))

    def own(noise: LocalNoise, rows: Any, users: Any) -> Any:
        # Each user releases its own row.
        cost = Cost(noise_multiplier=np.inf)
        return tape.note(Draw("gaussian", np.array(rows), noise.deviation, cost, add(noise, rows, users))).copy()

    def summed(masked: MaskedSum, total: Any) -> Any:
        found = values(masked, total)
        return tape.note(Draw("gaussian", found, masked.deviation, Cost(), found)).copy()

    def begun(streams: Streams, *, secure: bool, once: bool = False, source: Any = None) -> None:
        begin(streams, secure=False, source=tape.source)

    def keyed(key: MaskKey, made: bytes | None = None, *counts: int) -> None:
        secret(key, next(keys).to_bytes(32, "big") if made is None else made, *counts)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, new in (
            (Streams, "__init__", begun),
            (LocalNoise, "add", own),
            (MaskedSum, "values", summed),
            (MaskKey, "__init__", keyed),
        ):
            patch.setattr(owner, name, new)
        yield


@contextmanager
def listening() -> Iterator[list[str]]:
    """The lines logged within."""
    log, said = logging.getLogger("userdp"), list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.levelname} {record.getMessage()}")

    handler, level = Kept(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield said
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class SilentNode(Node):
    """A node that can answer nothing after the roster."""

    def compute(self, *given: Any) -> Any:
        raise UserdpError("out of order")


def trained(
    make: Callable[[], UserLevelStrategy],
    data: Federation,
    played: Tape | None = None,
    *,
    absent: int | None = None,
    silent: bool = False,
) -> View:
    """Run a strategy in this process on three nodes; with the outcomes of another run's noise, if given.

    A user may be ``absent``, which its own node is told; the last node may be ``silent``.
    """

    def grid_of(method: Any) -> Overheard:
        parts = [part[part != absent] for part in np.array_split(np.arange(data.users), NODES)]
        kinds = [Node, Node, SilentNode if silent else Node]
        return Overheard([kind(method.original, data, users) for kind, users in zip(kinds, parts, strict=True)])

    return viewed(make, grid_of, played, roster_timeout=60 if absent is None else 0)


def viewed(
    make: Callable[[], Any], grid_of: Callable[[Any], Any], played: Tape | None = None, *given: Any, **start: Any
) -> View:
    """Run a strategy, or a drop-in one, on a grid that keeps what it sends."""
    view, released = View(Tape(None if played is None else played.draws)), list[Any]()
    with taped(view.tape), listening() as lines:
        method = make()
        with grid_of(method) as grid:
            try:
                note = lambda number, arrays: released.append((number, plain(arrays)))  # noqa: E731
                method.start(grid, *given, evaluate_fn=note, **start)
            except UserdpError as error:
                view.ended = f"{type(error).__name__}: {error}"
    method = getattr(method, "inner", method)
    show_run(view, method)
    for message in grid.asked if isinstance(grid, Overheard) else grid.sent:
        # Inside a phase the nodes are trusted.
        if method.about.release == "phase" and "model" in message.content:
            continue
        asked = {name: value for name, value in fields_of(message).items() if name not in FRESH}
        view.show(f"message of round {message.metadata.group_id} to node {message.metadata.dst_node_id}", asked)
    view.show("released", released)
    view.show("log", lines)
    return view


def show_run(view: View, method: UserLevelStrategy) -> None:
    """All that a run knows and does not call private."""
    result, testers = method.result, method.testers
    public = {name for name, fact in notes_of(method.recipe).items() if fact.kind != "private"} | {"held_out_loss"}
    for record in result.rounds:
        shown = {name: value for name, value in record.as_dict().items() if name not in {*MEASURED, "facts"}}
        view.show(f"record {record.round}", shown)
        view.show(f"facts {record.round}", {name: value for name, value in record.facts.items() if name in public})
    for name in ("arrays", "constant", "guarantee", "initial_metrics", "evaluate_metrics_clientapp"):
        view.show(name, getattr(result, name))
    view.show("plan", method.plan.as_dict())
    view.show("spent", method.spent_epsilon)
    view.show("ended", view.ended)
    if testers is not None:
        view.show("held out", {name: getattr(testers, name, None) for name in ("found", "losses", "limit", "charged")})
        view.show("held out spent", testers.spent())
    if not view.ended:
        view.show("report", method.scheme.report(method.state.released, method.memory))


def insist_on_the_same(first: View, second: View, case: str, but: tuple[str, ...] = ()) -> None:
    """Raise AssertionError with the first thing that shows other data, but for names that end so."""
    assert second.ended == first.ended, f"{case}: ends otherwise"
    assert len(second.tape.draws) == len(first.tape.draws), f"{case}: another number of draws"
    assert [draw.scale for draw in second.tape.draws] == [draw.scale for draw in first.tape.draws], f"{case}: scales"
    assert [name for name, _ in second.seen] == [name for name, _ in first.seen], f"{case}: other things are shown"
    for (name, one), (_, other) in zip(first.seen, second.seen, strict=True):
        assert one == other or name.endswith(but), f"{case}: {name} shows other data though all releases are the same"


def insist_on_the_price(first: Tape, second: Tape, changes: float, case: str) -> None:
    """Raise AssertionError if a value moved by more than ``changes`` times what its noise was charged for."""
    for place, (one, other) in enumerate(zip(first.draws, second.draws, strict=True)):
        moved, bound = one.distance(other), one.sensitivity
        if bound is not None and np.isfinite(bound):
            told = f"{case}: draw {place} ({one.kind}) moves by {moved:.6g}, charged for {changes * bound:.6g}"
            assert moved <= changes * bound * (1 + ROUNDING), told

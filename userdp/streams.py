"""The randomness of one run: noise streams, each opened once and its cost known, and the seeds that requests carry."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from userdp.accounting import Cost, NoiseKind, Unit
from userdp.accounting.costs import together
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation
from userdp.noise import NoiseSource, SecureNoise, SeededNoise
from userdp.randomness import stream
from userdp.state import State

SOURCES: dict[NoiseKind, str] = {
    "seeded": "seeded (simulation only: whoever knows the seed removes the noise)",
    "secure": "secure (the operating system's randomness, safe in floating point; never seeded: running again draws "
    "other noise and spends the budget again)",
}
"""The sources of a run's noise, for people."""
GIVEN_SEED = "noise comes from a seeded generator: this is a simulation, whoever knows the seed can undo it"
"""The assumption of seeded noise whose seed somebody gave."""
DRAWN_SEED = (
    "noise comes from a seeded generator, in floating point and not hardened against attacks; its seed was drawn from "
    "the operating system, and is secret and not kept"
)
"""The assumption of seeded noise whose seed nobody gave."""
_OPERATING_SYSTEM = "noise comes from the operating system's randomness, which nobody can predict"
SECURE_ASSUMPTIONS: dict[Unit, tuple[str, ...]] = {
    "user": (_OPERATING_SYSTEM, "users are computed one by one, or to the same bits, and equal data give equal bits"),
    "sample": (_OPERATING_SYSTEM, "the last bits of a sample's gradient do not depend on the user's other samples"),
}
"""The assumptions of secure noise, by the unit of privacy."""


def assumptions(kind: NoiseKind, unit: Unit, *, drawn: bool) -> tuple[str, ...]:
    """Return what a guarantee rests on by the source of its noise; ``drawn`` says that nobody gave the seed."""
    if kind == "secure":
        return SECURE_ASSUMPTIONS[unit]
    return (DRAWN_SEED if drawn else GIVEN_SEED,)


_ORDER = 8  # Label that separates the order of users' samples from the choice of cohorts


class Streams:
    """Opens the noise sources of a run, by (seed, round, purpose).

    *Formal guarantees.* *Claim.* No two releases of a run share noise. *Why.* A release draws from a source, and this
    is the one place that makes them. Streams of different keys are independent (`userdp.randomness`). A key is opened
    once, and draws from one source follow each other. Secure noise is fresh at every draw; its keys are refused alike,
    so that a simulation fails wherever a deployment does. A checkpoint names the keys that were opened before it, and a
    resumed run refuses them, but for noise that its memory goes on with, from where it was. A later one belongs to a
    round that is computed again, to the same bits.

    *Assumptions.* Every release draws from a source that was opened here; a test holds the packages to it.

    Args:
        secure: whether the operating system draws the noise; else it is SIMULATED, from the seed.
        once: whether copies are refused, by a fork, too, as those of ``secure`` noise always are: they would draw the
            same noise, and spend the budget again.
        source: makes the simulated source of (seed, round, purpose), for audits and tests; seeded noise if None.
    """

    def __init__(
        self, *, secure: bool, once: bool = False, source: Callable[[int, int, int], NoiseSource] | None = None
    ) -> None:
        self.secure, self._once, self._process = secure, once or secure, os.getpid()
        self._source = source or (lambda seed, index, purpose: SeededNoise(stream(seed, "noise", index, purpose)))
        self._opened: set[tuple[int, int, int]] = set()
        self._before: set[tuple[int, int]] = set()  # of the run that this one resumes
        self._of_round: list[NoiseSource] = []

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse (`BadInput`) to copy what draws ``once``."""
        if self._once:
            raise BadInput("this cannot be copied, because its budget is spent once: make a new one")
        return super().__reduce_ex__(protocol)

    def open(self, seed: int, index: int, purpose: int, slack: float) -> NoiseSource:
        """Open the source of a round's purpose; ``slack`` is that of secure noise, see `userdp.noise.SecureNoise`.

        An audit repeats a run with other seeds: each seed is a run. Raises `RunFailed`: it was opened before;
        `BadInput`: this process is a fork of the one that made what draws ``once``.
        """
        if self._once and self._process != os.getpid():
            self.__reduce_ex__(0)
        if (seed, index, purpose) in self._opened or (index, purpose) in self._before:
            raise RunFailed(
                f"the noise of round {index}, purpose {purpose} was drawn before: two releases that share noise hide "
                "nobody; give each release of a round a purpose of its own"
            )
        self._opened.add((seed, index, purpose))
        made = SecureNoise(slack) if self.secure else self._source(seed, index, purpose)
        self._of_round.append(made)
        return made

    def drawn(self) -> Cost:
        """Return the cost of all releases from sources that were opened since the last call."""
        sources, self._of_round = self._of_round, []
        return together(*(source.spent for source in sources))

    def state(self) -> State:
        """Return which sources a run has opened, without their seed."""
        opened = self._before.union((index, purpose) for _, index, purpose in self._opened)
        return {"opened": [list(place) for place in sorted(opened)]}

    def restore(self, state: State) -> None:
        """Refuse from now on what the run had opened when `state` listed it."""
        self._before = {(int(index), int(purpose)) for index, purpose in state["opened"]}


def seeded(computation: Computation, index: int, seed: int, noise_seed: int | None) -> Computation:
    """Return the computation of round ``index``, with the seeds of what users and nodes draw.

    ``seed`` orders users' samples, where they take minibatches. ``noise_seed`` is that of SIMULATED noise and masks;
    None where each machine's operating system draws them.
    """
    if computation.noise is not None:
        computation = replace(computation, noise=replace(computation.noise, seed=noise_seed, round=index))
    if computation.masked is not None:
        computation = replace(computation, masked=replace(computation.masked, seed=noise_seed, round=index))
    if computation.parameters.get("batch_size"):
        key = float(stream(seed, "sampling", index, _ORDER).integers(1, 2**53))
        computation = replace(computation, parameters={**computation.parameters, "key": key})
    return computation

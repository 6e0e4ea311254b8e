"""Folders of silos for tests."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from flwr.app import Message

from simulations.engines.grids import LocalGrid
from simulations.runs.silos import FILE


class Patient(LocalGrid):
    """Asks all of its nodes, however busy the machine is; timeouts are for those that are not there."""

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        return super()._deliver(messages, None)


def rehearsed(folders: Iterable[Path]) -> None:
    """Say of folders that were made from a table that they are for a simulation, so that seeded noise is accepted."""
    for folder in folders:
        altered_file(folder, made_for=np.array("simulation"))


def altered_file(folder: Path, **arrays: np.ndarray | None) -> None:
    """Replace arrays in a silo's file, or leave them out."""
    with np.load(folder / FILE) as stored:
        kept = dict(stored) | arrays
    np.savez(folder / FILE, **{name: array for name, array in kept.items() if array is not None})

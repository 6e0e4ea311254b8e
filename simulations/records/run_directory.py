"""The files of a run: each is replaced as a whole while the run proceeds, so that a stopped run leaves what it had."""

import json
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.results import ANSWERS, RoundRecord
from userdp.arrays.types import Vector
from userdp.errors import BadInput

FILES = (
    *("config.toml", "plan.json", "data.json", "rounds.parquet"),
    *("model.npz", "guarantee.json", "result.json", "report.html"),
)
"""Every file of a run but a query's answers. A run in a directory that its caller named removes these and no others."""
CHECKPOINT, ASKED = "checkpoint.npz", "asked.npz"
"""Files from which a killed run resumes; see `simulations.records.checkpoints`."""
TOKEN = "account.json"
"""The file that names the run's entry in an account; see `simulations.account.entering`."""
TENSORBOARD = "tensorboard"  # the folder of TensorBoard's events; a rerun removes those of the previous run

CARD = ("card.html", "card.json")
"""The card of a run, which `userdp report DIR --card` writes; a rerun removes it with the files it was made from."""
_BEFORE = ("config.toml", "plan.json")  # written before anybody is asked
_ENDING = ("result.json", ANSWERS, "report.html", *CARD)
_SECONDS_BETWEEN_WRITES = 2.0


class RunDirectory:
    """Writes a run's files into a folder, made if needed; ``resumed`` if it holds the first part of this very run.

    BadInput if it cannot be written. Files of another run are removed: `check_no_release` comes first.
    """

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        self.path = path
        self._written = -math.inf
        with writing(f"output.directory: {path}"):
            private_folder(path)
            # A resumed run keeps its model and guarantee until newer ones replace them.
            for name in _ENDING if resumed else (*FILES, ANSWERS, *CARD, CHECKPOINT, ASKED):
                (path / name).unlink(missing_ok=True)
            for events in path.glob(f"{TENSORBOARD}/events.out.tfevents.*"):
                events.unlink(missing_ok=True)

    def text(self, name: str, content: str) -> None:
        """Write a text file."""
        write_text(self.path / name, content)

    def json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file; numbers that are not finite become null."""
        self.text(name, as_json(values))

    def model(self, x: Vector) -> None:
        """Write the parameters of a model."""
        write_arrays(self.path / "model.npz", {"x": x})

    def progress(
        self,
        rounds: Sequence[RoundRecord],
        x: Vector,
        guarantee: Callable[[], Mapping[str, Any]],
        *,
        now: bool = False,
    ) -> None:
        """Write the guarantee, rounds and the released model, at most every two seconds unless ``now``.

        The guarantee comes first, so that a killed run never leaves a model that its guarantee does not cover.
        """
        if not now and time.monotonic() - self._written < _SECONDS_BETWEEN_WRITES:
            return
        import pandas as pd  # noqa: PLC0415 -- slow to import, and a plan writes no rounds

        self.json("guarantee.json", guarantee())
        frame = pd.DataFrame([flat(record) for record in rounds], columns=None if rounds else list(_COLUMNS))
        write_whole(self.path / "rounds.parquet", lambda partial: frame.to_parquet(partial, index=False))
        self.model(x)
        self._written = time.monotonic()


class Unwritable(BadInput):
    """A place cannot be written, now: the disk may be full. That says nothing about what was to be written there."""


@contextmanager
def writing(place: str, remedy: str = "choose another folder") -> Iterator[None]:
    """Turn errors of writing a place into `Unwritable`."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{place} cannot be written ({type(error).__name__}); {remedy}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; raise `OSError` or `ValueError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def token_of(folder: Path) -> str | None:
    """Return the token of a run directory; None without one, "" if it cannot be read."""
    if not (folder / TOKEN).is_file():
        return None
    try:
        return str(read_json(folder / TOKEN)["token"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def resumable(folder: Path) -> bool:
    """Return whether a folder holds a run that resumes, from a checkpoint or from its beginning, at no further cost."""
    return (folder / CHECKPOINT).is_file() or ((folder / TOKEN).is_file() and not ended(folder))


def ended(folder: Path) -> bool:
    """Return whether a folder holds a run that ended without an error."""
    try:
        return "error" not in read_json(folder / "result.json")
    except (OSError, ValueError):
        return False


def check_files(directory: Path, names: Collection[str], example: str) -> None:
    """Raise BadInput if a directory lacks one of the named files; ``example`` says which directory to give instead."""
    for name in names:
        if not (directory / name).is_file():
            raise BadInput(f"{directory} holds no {name}: give the directory of {example}")


def private_folder(path: Path) -> None:
    """Make a folder, and those above it, for its owner alone, whatever the umask; one that is there stays as it is."""
    for folder in reversed([one for one in path.parents if not one.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Make an empty file for its owner alone, whatever the umask, in place of one that is there.

    Whoever opens it to write keeps its rights, so that there is no moment at which others could read it.
    """
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def write_text(path: Path, content: str) -> None:
    """Write a text file as `write_whole` does."""
    write_whole(path, lambda partial: partial.write_text(content, encoding="utf-8"))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a NumPy archive as `write_whole` does."""

    def save(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    write_whole(path, save)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, for its owner alone, and put it there: its content reaches the disk first."""
    partial = partial_of(path)
    private_file(partial)
    write(partial)
    to_disk(partial)
    os.replace(partial, path)
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def partial_of(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return path.with_name(f".{path.name}.partial")


def next_directory(path: Path, *, secure: bool) -> Path:
    """Return ``path`` for the first run of that name, then ``path-2``, ``path-3``, ... after the last one.

    BadInput if noise is ``secure``, and one of these folders holds a release, which spent the budget, or a run that has
    not ended and may still release something.
    """
    numbered = re.compile(rf"{re.escape(path.name)}(?:-([0-9]+))?")
    try:
        found = {one: numbered.fullmatch(one.name) for one in path.parent.iterdir()}
    except OSError:  # missing or unreadable: making the directory raises the error
        return path
    taken = {one: int(match[1] or 1) for one, match in found.items() if match}
    if secure:
        for one in taken:
            check_no_release(one)
            _check_ended(one)
    return path.with_name(f"{path.name}-{max(taken.values()) + 1}") if taken else path


def new_directory(path: Path, *, secure: bool) -> Path:
    """Make `next_directory` at once: two runs that start together get two, or with secure noise one is refused."""
    while True:
        chosen = next_directory(path, secure=secure)
        with suppress(OSError):  # `RunDirectory` raises the error
            private_folder(chosen.parent)
        try:
            chosen.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError:  # as above
            pass
        return chosen


def remove_empty(path: Path) -> None:
    """Remove a folder in which a run was refused before it wrote anything."""
    with suppress(OSError):
        path.rmdir()


def _check_ended(path: Path) -> None:
    """Refuse a name whose run may still release something: its folder is empty, or has no result."""
    names = {one.name for one in path.iterdir()} if path.is_dir() else {"a file"}
    if not names or ("result.json" not in names and _may_be_secure(path)):
        raise BadInput(
            f"output.directory: {path} belongs to a run that has not ended, and two runs with privacy.noise = 'secure' "
            "would spend the budget twice: wait for it, or if it was killed resume it with --resume or move the folder "
            "away"
        )


def check_no_release(path: Path, *, secure: bool = False) -> None:
    """Refuse to overwrite a release that cannot be repeated, and whose budget is spent; what is unreadable may be one.

    ``secure``: the folder's run had secure noise; by default its config.toml says so.
    """
    if (secure or _may_be_secure(path)) and _may_hold_release(path):
        raise BadInput(
            f"output.directory: {path} holds what a run with privacy.noise = 'secure' released, which cannot be drawn "
            "again; another run spends its budget on top. If you mean that, choose another folder or move this one "
            "away; resume a run that was killed with --resume"
        )


def _may_hold_release(path: Path) -> bool:
    """Return whether a folder may hold a release: only whole files that all say so rule it out."""
    if os.path.lexists(path / ASKED):
        return True
    if not any(os.path.lexists(path / name) for name in (*FILES, ANSWERS, *CARD) if name not in _BEFORE):
        return False
    import pandas as pd  # noqa: PLC0415 -- as above

    try:
        with (path / "rounds.parquet").open("rb") as rounds, (path / "model.npz").open("rb") as model:
            released = len(pd.read_parquet(rounds)) + int(read_json(path / "result.json")["rounds"])
            whole = np.load(model)["x"].ndim == 1 and "holds" in read_json(path / "guarantee.json")
    except Exception:  # a foreign file may raise anything
        return True
    return released > 0 or not whole


def _may_be_secure(path: Path) -> bool:
    """Return whether a folder's run may have had secure noise: its config.toml is there, and does not say otherwise."""
    if not os.path.lexists(path / "config.toml"):
        return False
    try:
        noise = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))["privacy"]["noise"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return True
    return bool(noise != "seeded")


_COLUMNS = {
    "round": "round",
    "seconds": "seconds",
    "missing_users_private": "missing_users",
    "non_finite_users_private": "non_finite_users",
    "spent_epsilon": "spent_epsilon",
}
"""Column of rounds.parquet -> attribute of a record, for every strategy."""


def flat(record: RoundRecord) -> dict[str, float | int | None]:
    """Return one row of rounds.parquet: the strategy's facts as "fact.*", metrics as "metric.*"."""
    row: dict[str, float | int | None] = {name: getattr(record, attribute) for name, attribute in _COLUMNS.items()}
    row |= {f"fact.{name}": value for name, value in record.facts.items()}
    row |= {f"metric.{name}": value for name, value in record.metrics.items()}
    return row


def as_json(values: Any) -> str:
    """Return the content of a JSON file."""
    return json.dumps(plain(values), indent=2) + "\n"


def plain(value: Any) -> Any:
    """Return a value in JSON's types; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

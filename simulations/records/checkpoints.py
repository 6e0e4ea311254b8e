"""Checkpoints of a run, from which it resumes after its process was killed; removed when the run has ended.

Files are NumPy archives of arrays and one JSON text: reading them executes nothing. Each file is flushed to the disk
beside its place and moved as a whole, so that a kill at any moment leaves the previous or the new one.
"""

import fcntl
import hashlib
import hmac
import json
import math
import os
import struct
import time
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simulations.config.run_config import RunConfig, flatten, read_toml
from simulations.records.environment import versions
from simulations.records.named_code import check_code, digests, signature
from simulations.records.run_directory import (
    ASKED,
    CHECKPOINT,
    TOKEN,
    as_json,
    ended,
    partial_of,
    private_folder,
    read_json,
    token_of,
    write_arrays,
    write_text,
    writing,
)
from strategies.core.run_state import BEGUN, Resumed
from userdp.errors import BadInput
from userdp.snapshots import Snapshot
from userdp.state import OTHER_VERSION

_LOCK = ".running"
_APP_ROOT = Path(__file__).resolve().parents[2]
_STATE = "state_private"  # name of the text in an archive; arrays are named "state_private.KEY"
_FORMAT = 3
_OF_VERSIONS = ("userdp", "numpy")  # packages that decide the bits of a round that is computed again

_OF_BASE = {".json", ".safetensors"}  # what `userdp.neural.language` reads of a base model
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}  # of which no tokenizer is made

_SETTLED_NS = 2 * 10**9  # a file that changed later than so long ago may change again without another time

_UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RuntimeError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""Errors that reading a damaged archive may raise."""
SPARING = 20.0
"""An optional checkpoint waits this many times as long as the last one took to write, so that it costs < 5 %."""


class Checkpoints:
    """The `strategies.core.run_state.Keeper` of a run directory: `CHECKPOINT` after a round, `ASKED` before one."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._folder = folder
        self._settings = _settings(config)
        code = self._settings["code"]
        self._signature = signature(config, code) if code else None
        self._next, self._told = -math.inf, False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing here (BadInput if one does); a killed process releases the lock."""
        with writing(f"output.directory: {self._folder}"):
            private_folder(self._folder)
            lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not self._locked(lock):
                raise BadInput(f"{self._folder} belongs to a run that has not ended: wait for it, or stop it first")
            try:
                yield
            finally:
                (self._folder / _LOCK).unlink(missing_ok=True)
        finally:
            os.close(lock)

    def _locked(self, lock: int) -> bool:
        """Lock the file; return False if another process holds it, or removed it since it was opened."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock).st_ino == (self._folder / _LOCK).stat().st_ino
        except OSError:
            return False

    def ask(self, taken: Snapshot) -> None:
        """Record that users are about to be asked; beside the token, too, which may outlive the files of the run."""
        token = self._folder / TOKEN
        if taken.get("round") != BEGUN and not self._told and token.is_file():
            write_text(token, as_json(read_json(token) | {"asked": True}))
            self._told = True
        self._write(ASKED, taken)

    def keep(self, take: Callable[[], Snapshot], *, must: bool) -> None:
        """Write the state of the run; unless it ``must``, spend at most a twentieth of the run's time on it."""
        started = time.monotonic()
        if not must and started < self._next:
            return
        self._write(CHECKPOINT, take())
        ended = time.monotonic()
        self._next = ended + SPARING * (ended - started)

    def read(self) -> Resumed | None:
        """Read the state of a killed run; None if it was killed before it asked anybody.

        BadInput if the run had another configuration or has ended, or its state is missing or cannot be read.
        """
        kept, asked = self._read(CHECKPOINT), self._read(ASKED)
        if kept is not None:
            if asked is None and self._settings["configuration"]["privacy"]["noise"] == "secure":
                if ended(self._folder):  # it was killed while it removed them
                    remove_checkpoints(self._folder)
                    raise BadInput(f"{self._folder} holds a run that has ended: there is nothing to resume")
                raise BadInput(f"{self._folder / ASKED} is missing, which says who was asked: no resuming without it")
            return Resumed(kept, asked)
        if ended(self._folder):
            raise BadInput(f"{self._folder} holds a run that has ended: there is nothing to resume")
        if asked is not None and asked.get("round") != BEGUN:
            raise BadInput(f"{self._folder / CHECKPOINT} is missing, though users were asked: no resuming without it")
        if _asked_under(self._folder / TOKEN):
            raise BadInput(
                f"{self._folder / CHECKPOINT} and {ASKED} are missing, though users were asked under the entry that "
                f"{TOKEN} names: put them back; to run anew, choose another folder, which is a new entry"
            )
        return None

    def _write(self, name: str, taken: Snapshot) -> None:
        kept = {"format": _FORMAT, **self._settings, "signature": self._signature}
        kept |= {"token": token_of(self._folder), "values": taken.values, "arrays": list(taken.arrays)}
        text = json.dumps(kept, allow_nan=False)

        parts = {f"{_STATE}.{key}": array for key, array in taken.arrays.items()}
        write_arrays(self._folder / name, parts | {_STATE: np.frombuffer(text.encode(), dtype=np.uint8)})

    def _read(self, name: str) -> Snapshot | None:
        path = self._folder / name
        try:
            kept, arrays = _opened(path)
            self._check(path, kept)
            return Snapshot(kept["values"], {key: arrays[f"{_STATE}.{key}"] for key in kept["arrays"]})
        except BadInput:
            raise
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            reason = f"{path} cannot be read ({type(error).__name__}): it is damaged or cut short"
            raise BadInput(f"{reason}; put back the file that the run wrote, or start the run anew") from None

    def _check(self, path: Path, kept: Mapping[str, Any]) -> None:
        """Refuse the file of another run, with every setting that differs and both its values."""
        if (form := kept.get("format")) != _FORMAT:
            raise BadInput(f"{path} has format {form!r}; this userdp reads {_FORMAT}: {OTHER_VERSION}")
        there, here = (_flat({key: settings[key] for key in self._settings}) for settings in (kept, self._settings))
        other = [
            f"{key} is {there.get(key, 'not set')!r} there and {here.get(key, 'not set')!r} here"
            for key in sorted(there.keys() | here.keys())
            if there.get(key) != here.get(key)
        ]
        if other:
            differing = "; ".join(other)
            raise BadInput(f"{path} belongs to a run with other settings ({differing}): use the config.toml beside it")
        entered, token = kept.get("token"), token_of(self._folder)
        if entered and token and entered != token:
            raise BadInput(f"{path} is not of the run whose entry {TOKEN} names: put each back into its own folder")


def remove_checkpoints(folder: Path) -> None:
    """Remove all files of a run that has ended; the checkpoint last, by which a killed removal is seen."""
    for path in (folder / ASKED, folder / CHECKPOINT):
        partial_of(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _asked_under(token: Path) -> bool:
    """Return whether users were asked under a folder's token, with noise that cannot be drawn again."""
    try:
        return bool(read_json(token).get("asked"))
    except (OSError, ValueError, AttributeError):  # `simulations.account.entering` refuses it
        return False


def in_use(folder: Path) -> bool:
    """Return whether a process runs or resumes a run in this folder, on this machine."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON values of an archive, and its arrays; raises some of `_UNREADABLE`."""
    with path.open("rb") as file:
        if zipfile.ZipFile(file).testzip() is not None:  # compares the checksum of every part
            raise zipfile.BadZipFile
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    return json.loads(arrays[_STATE].tobytes()), arrays


def check_resumed(folder: Path, *, trusted: bool) -> None:
    """Refuse (BadInput) a directory that names code, unless it is trusted or this user began the run here with it."""
    values = read_toml(folder / "config.toml")
    with suppress(*_UNREADABLE):
        kept, _ = _opened(folder / CHECKPOINT)
        trusted = trusted or hmac.compare_digest(signature(values, kept["code"]), str(kept["signature"]))
    check_code(folder, values, trusted=trusted)


def configuration_file(file: Path | None, resume: Path | None) -> Path:
    """Return FILE, or config.toml in the directory of --resume; BadInput if neither is there."""
    if resume is not None and not (resume / "config.toml").is_file():
        raise BadInput(f"--resume {resume}: it holds no config.toml, so it is not the directory of a run; check it")
    if file is not None:
        return file
    if resume is None:
        raise BadInput("FILE is missing: name a configuration file, or resume a run with --resume DIRECTORY")
    return resume / "config.toml"


def digest_of(config: RunConfig) -> str:
    """Return the SHA-256 of all that must be equal for a run to resume.

    With seeded noise that includes the table, the initial model, a base model and a tokenizer: changed, they would be
    released with the same noise. Paths in the app's own folder are relative to it: Flower unpacks the app that a keeper
    submits elsewhere.
    """
    settings = _settings(config)
    if config.privacy.noise == "seeded":
        settings["files"] = [_digest_of_file(path) for path in _files(settings["configuration"])]
        settings["files"] += _of_language(settings["configuration"])
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.replace(f"{_APP_ROOT}{os.sep}", "").encode()).hexdigest()


def _files(configuration: Mapping[str, Any]) -> list[str | None]:
    """Return the paths of all files that a configuration names and from which models or samples are made."""
    data, problem = configuration["data"], configuration["problem"]
    return [data.get("path"), problem.get("initial_model")]


def _of_language(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names and digests of what is read of a base model's folder and a tokenizer's, each once a process."""
    base, words = configuration["problem"].get("model"), configuration["data"].get("sequence", {}).get("tokenizer")
    for role, place in (("model", base), ("tokenizer", words)):
        folder = Path(place.removeprefix("hf:")) if isinstance(place, str) and place.startswith("hf:") else None
        for path in sorted(folder.rglob("*")) if folder else ():
            if path.is_file() and (path.suffix in _OF_BASE if role == "model" else path.suffix not in _WEIGHTS):
                about = path.stat()
                marks = about.st_size, about.st_mtime_ns, about.st_ctime_ns
                settled = time.time_ns() - max(marks[1:]) > _SETTLED_NS
                digest = _kept_digest(str(path), *marks) if settled else _digest_of_file(str(path))
                yield f"{role} {path.relative_to(folder or path)} {digest}"


@cache
def _kept_digest(path: str, *marks: int) -> str | None:
    return _digest_of_file(path)


def _digest_of_file(path: str | None) -> str | None:
    try:
        with open(path or "", "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # there is none, as for a table in memory; reading it names the fault
        return None


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return everything that must be equal for a run to resume: versions, code, settings that can change a bit."""
    configuration = tomllib.loads(config.toml())
    configuration["output"].pop("directory")
    configuration["data"].pop("memory", None)
    used = {name: versions()[name] for name in _OF_VERSIONS}
    return {"configuration": configuration, "versions": used, "code": digests(config)}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("configuration."): value for key, value in flatten(values).items()}

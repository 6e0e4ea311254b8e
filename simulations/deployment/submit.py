"""Submit a run to a SuperLink by Flower's command line, wait for its end and copy its files.

`flwr run --stream` alone ends with exit code 0 even if the run fails.
"""

import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import tomli_w

from simulations.records.run_directory import FILES, read_json, resumable, write_whole
from userdp.accounting.guarantee import Guarantee
from userdp.errors import BadInput, RunFailed

_NAME = "deployment"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # Flower's programs call home by default
_SECONDS = 60.0


@dataclass(frozen=True)
class Link:
    """A SuperLink at host:port, for Flower's command line; ``keys`` is the folder of ca.crt, or None for no TLS."""

    address: str
    keys: Path | None
    home: Path = field(default_factory=lambda: Path(mkdtemp(prefix="flwr-")))

    def __post_init__(self) -> None:
        trust = {"insecure": True} if self.keys is None else {"root-certificates": str(self.keys / "ca.crt")}
        settings = {"superlink": {"default": _NAME, _NAME: {"address": self.address, **trust}}}
        (self.home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """Return a Flower command and its environment; "LINK" stands for the connection's name."""
        named = [_NAME if argument == "LINK" else argument for argument in arguments]
        return ["flwr", *named], QUIET | os.environ | {"FLWR_HOME": str(self.home)}

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Return a command's answer in JSON; RunFailed without one, with the command's last line."""
        command, environment = self.command(*arguments, "--format", "json")
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the SuperLink at {self.address} did not answer within {_SECONDS:.0f} s") from None
        start = done.stdout.find("{")
        try:
            answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            answer = {}
        if done.returncode or not answer or answer.get("success") is False:
            said = str(answer.get("error-message") or (done.stderr or done.stdout).strip() or "nothing")
            raise RunFailed(f"flwr {arguments[0]} failed: {said.splitlines()[-1]}")
        return answer


log = logging.getLogger("userdp.submit")
_POLL_SECONDS = 15.0
_PAUSE_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
_NEEDED = ("model.npz", "result.json", "guarantee.json", "report.html")


def submit(link: Link, app: Path, settings: str, *, results: Path, output: Path, resume: str = "") -> int:
    """Submit a run of a Flower app, wait for its end and copy its files; return 0 only if it completed and left all.

    ``settings`` is the text of a configuration, which the silos get as it is. The ServerApp writes ``results`` under
    this very path, a folder for each run; ``resume`` names one of these. BadInput if ``output`` cannot be written, or
    there is no run to resume; RunFailed if the SuperLink refuses it.
    """
    if not os.access(output, os.W_OK):
        raise BadInput(f"{output} cannot be written by user {os.getuid()}; let this user write there")
    folder = results / (resume or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}")
    if resume and not resumable(folder):
        raise BadInput(f"--resume {resume}: {folder} holds no checkpoint; name the folder in the run's log")
    return bring(folder, output, follow(link, start(link, app, settings, folder)))


def start(link: Link, app: Path, settings: str, folder: Path) -> str:
    """Submit a run that writes ``folder``, and return its number; `RunFailed` if the SuperLink refuses it."""
    path = link.home / "run-config.toml"
    path.write_text(tomli_w.dumps({"settings": settings, "output": str(folder), "deployed": True}), "utf-8")
    number = str(link.ask("run", str(app), "LINK", "--run-config", str(path))["run-id"])
    log.info("run %s is submitted; its files go to %s", number, folder)
    return number


def follow(link: Link, number: str) -> str:
    """Show the log of a run until its end, and return its status.

    A SuperLink that does not answer, or no longer knows the run, is asked again for a minute.
    """
    command, environment = link.command("log", number, "LINK", "--stream")
    log_shown, heard = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL), time.monotonic()
    try:
        while True:
            # The log ends with the run; polling more often would take processor time from the run.
            with suppress(subprocess.TimeoutExpired):
                log_shown.wait(_POLL_SECONDS)
            try:
                entry = link.ask("ls", "LINK", "--run-id", number)["runs"][0]
            except (RunFailed, LookupError) as error:
                if time.monotonic() - heard > _PATIENCE_SECONDS:
                    return f"lost: the SuperLink restarted or is gone ({error})"
            else:
                heard = time.monotonic()
                if str(entry["status"]).startswith("finished"):
                    return str(entry["status"])
            if log_shown.poll() is not None:
                time.sleep(_PAUSE_SECONDS)
    finally:
        log_shown.terminate()
        log_shown.wait()


def bring(folder: Path, output: Path, status: str) -> int:
    """Copy a run's files over those of an earlier one, and log its guarantee; 0 only if it completed with all files.

    They are for their owner alone. If root brings them, as in a container, that is the owner of the folder, and the
    folder becomes its owner's alone.
    """
    owner = output.stat()
    if os.getuid() == 0:
        output.chmod(0o700)
    for name in FILES:
        (output / name).unlink(missing_ok=True)
        if (folder / name).is_file():
            write_whole(output / name, partial(shutil.copyfile, folder / name))
            if os.getuid() == 0:
                os.chown(output / name, owner.st_uid, owner.st_gid)
    missing = [name for name in _NEEDED if not (output / name).is_file()]
    result = {} if "result.json" in missing else read_json(output / "result.json")
    if "guarantee.json" not in missing:
        log.info("guarantee: %s", Guarantee.from_dict(read_json(output / "guarantee.json")))
    if status == "finished:completed" and not missing and "error" not in result:
        log.info("the run is done: %s are in %s", ", ".join(_NEEDED), output)
        return 0
    why = result.get("error") or (f"it left no {', '.join(missing)}" if missing else "its log says why")
    resume = f"; resume it with --resume {folder.name}" if resumable(folder) else ""
    print(f"userdp: the run failed ({status}): {why}{resume}", file=sys.stderr, flush=True)
    return 1

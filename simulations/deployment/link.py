"""Calls of Flower's command line against a SuperLink."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import tomli_w

from userdp.errors import RunFailed

_NAME = "deployment"
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
        return ["flwr", *named], os.environ | {"FLWR_HOME": str(self.home)}

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

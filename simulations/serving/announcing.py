"""Announcements to the operator: lines of the log, as text or JSON, and a command of the operator's own."""

import json
import logging
import shlex
import subprocess
from datetime import UTC, datetime

log = logging.getLogger("userdp.serve")
_SECONDS = 30.0  # that a command may take


class Alarm:
    """Warns in the log, and by a command that gets {"alert", "message", "run"} in JSON on its standard input.

    Args:
        command: the command and its arguments, in one line; None for the log alone.
    """

    def __init__(self, command: str | None = None) -> None:
        self._command = shlex.split(command) if command else []

    def __call__(self, alert: str, message: str, run: int | None = None) -> None:
        """Warn of ``alert``: "refused", "stalled", "failed" or "missing". A command that fails stops nothing."""
        log.warning("alert (%s): %s", alert, message)
        if not self._command:
            return
        content = json.dumps({"alert": alert, "message": message, "run": run})
        try:
            subprocess.run(self._command, input=content, text=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the command for alerts failed (%s)", type(error).__name__)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, the message, its text without values, and these in order."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "text": record.msg,
            "values": list(record.args or ()),
        }
        if record.exc_info:
            values["error"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


FORMS = {"text": logging.Formatter("%(asctime)s %(levelname)s %(message)s"), "json": JsonLines()}
"""The forms of the log."""

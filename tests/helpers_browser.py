"""Measurements of pages by Chromium without a window: their width, and text that can be read."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

FRAMES = Path(__file__).with_name("frames.html")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET += ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars")
QUIET += ("--allow-file-access-from-files",)
PHONE, DESK = 390, 1280  # pixels of a telephone and of a desk's screen
SCHEMES = {"dark": 0, "light": 1}  # Chromium's numbers for them
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on the PATH, such as Debian's package"
)


def measured(pages: Mapping[str, Path], scheme: str, folder: Path, width: int = PHONE) -> dict[str, dict]:
    """Name of a page -> what Chromium finds on it, in a frame of that width."""
    frames = "\n".join(
        f'<iframe name="{name}" src="{path.as_uri()}" width="{width}" height="844" style="border: 0"></iframe>'
        for name, path in pages.items()
    )
    (folder / "frames.html").write_text(
        FRAMES.read_text(encoding="utf-8").replace("<!-- frames -->", frames), encoding="utf-8"
    )
    preferred = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *QUIET, preferred, profile, "--dump-dom", (folder / "frames.html").as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(found))


def check_seen(one: dict, scheme: str, width: int = PHONE) -> None:
    """Assert that a page is as wide as its window, of the scheme, and can be read."""
    assert one["wide"] <= one["window"] == width
    assert one["background"] < 0.1 if scheme == "dark" else one["background"] > 0.9
    assert one["texts"] > 50
    assert one["faint"] == []

"""The pages that are made and not committed, on disk before a test looks for them."""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def made() -> None:
    """Make all pages if this checkout lacks them; other processes wait until they are there."""
    with open(Path(tempfile.gettempdir()) / "userdp-pages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # docs/make.py writes the pictures last; the gallery came later than they, so a checkout may lack it alone.
        if not all((ROOT / "docs" / made).exists() for made in ("gallery/README.md", "pictures")):
            subprocess.run([sys.executable, str(ROOT / "docs" / "make.py")], cwd=ROOT, check=True, capture_output=True)

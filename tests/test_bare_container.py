"""A bare Debian with Python, make and git gets from nothing to the demo's picture, and to README's private model.

USERDP_BARE names another image with Python, TORCH what the demo installs. `pytest -s` shows what each step took.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers_containers import engine_answers

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
IMAGE = os.environ.get("USERDP_BARE", "python:3.11-slim-bookworm")
CI = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
TORCH = os.environ.get("TORCH", CI["jobs"]["change"]["env"]["TORCH"])
MOST = 2300
"""Megabytes that the demo may install: torch for the CPU is a third of them, and CUDA libraries would double them."""
SCRIPT = """
set -eu
step() {
    begun=$(date +%s)
    name="$1"
    shift
    "$@" >/tmp/said 2>&1 || { tail -n 40 /tmp/said; exit 1; }
    echo "$name: $(($(date +%s) - begun)) s"
}
apt-get update -qq && apt-get install -qq --no-install-recommends make git >/dev/null 2>&1
cd /tmp
step "clone" git clone --quiet /given/userdp.bundle userdp
cd userdp
step "make demo, nothing cached" make demo TORCH="$TORCH"
tail -n 3 /tmp/said
echo "installed: $(du -sm .venv | cut -f 1) MB"
install -m 644 comparisons/user-level/report.html /out/demo.html
cp /given/*.py .
.venv/bin/python people.py
step "a model of the README" .venv/bin/python readme.py
tail -n 40 /tmp/said
step "make demo, packages cached" make demo VENV=.again TORCH="$TORCH"
"""
PEOPLE = """
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
age = rng.uniform(18, 100, 12_000).round()
answer = np.where(rng.random(12_000) < 1 / (1 + np.exp(-(age - 60) / 8)), "yes", "no")
people = pd.DataFrame({"person": np.repeat(np.arange(3000), 4), "age": age, "answer": answer})
people.to_csv("people.csv", index=False)
"""
pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not engine_answers(), reason="no container engine with Compose answers"),
]


def test_a_bare_machine_makes_the_picture_and_a_private_model(tmp_path):
    given, out = tmp_path / "given", tmp_path / "out"
    given.mkdir()
    out.mkdir()
    subprocess.run(["git", "bundle", "create", "--quiet", str(given / "userdp.bundle"), "HEAD"], cwd=ROOT, check=True)
    declare, _, train, _ = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (given / "people.py").write_text(PEOPLE, encoding="utf-8")
    (given / "readme.py").write_text(declare + train, encoding="utf-8")
    (given / "steps.sh").write_text(SCRIPT, encoding="utf-8")
    mounted = ["--volume", f"{given}:/given:ro", "--volume", f"{out}:/out", "--env", f"TORCH={TORCH}"]
    index = [word for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") for word in ("--env", name)]
    done = subprocess.run(
        ["docker", "run", "--rm", *mounted, *index, IMAGE, "bash", "/given/steps.sh"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<svg" in (out / "demo.html").read_text(encoding="utf-8")
    assert "The picture: /tmp/userdp/comparisons/user-level/report.html" in done.stdout
    assert "Guarantee: (1, 1e-06)-differential privacy for replacing one whole user" in done.stdout
    assert len(re.findall(r": \d+ s$", done.stdout, re.MULTILINE)) == 4
    (installed,) = map(int, re.findall(r"^installed: (\d+) MB$", done.stdout, re.MULTILINE))
    assert installed <= MOST

"""docs/gallery: a page of reports, and the reports, which `make site` makes by the commands that the page shows."""

import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from making.courses import fill
from making.excerpts import plan

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "gallery"
COMMUTE = Path(__file__).with_name("commute.toml")
PEOPLE, TRIPS = 3000, 5
PLANNED = "robust-table.toml"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A report of the gallery.

    Attributes:
        name: of its file.
        title: above it.
        command: the words after ``userdp`` that make it.
        look: what to look at.
        after: a command before it, on whose files it works.
        quietly: words that change how long the command takes, and not what it makes.
    """

    name: str
    title: str
    command: str
    look: str
    after: str = ""
    quietly: tuple[str, ...] = ()


SHOWN = (
    Shown(
        name="run",
        title="A run",
        command="run simulations/configs/quickstart.toml",
        look="Look at the two boxes on top: is the model worth anything, and what is promised? In the curve, the first "
        "rounds measure privately what the others need, and leave the model where it is.",
    ),
    Shown(
        name="card",
        title="Its card",
        command="report runs/quickstart-auto-seed1 --card",
        look="Look at the first lines, which say that the noise is simulated; a card for a real release begins with "
        "the promise. The last table lists what the deploying organisation has to add.",
        after="run simulations/configs/quickstart.toml",
    ),
    Shown(
        name="classes",
        title="A table with three classes",
        command="run commute.toml",
        look="Look at the confusion matrix: trips on foot are often taken for trips by bicycle. The calibration below "
        "it says how far the probabilities can be trusted.",
    ),
    Shown(
        name="comparison",
        title="A comparison",
        command="compare simulations/configs/compare-quick.toml",
        look="Look at the rankings: nine strategies at the same two budgets. Red lines did no better than the initial "
        "model. The part below them says what each strategy promises and assumes.",
        quietly=("--workers", "0"),
    ),
    Shown(
        name="audit",
        title="An audit",
        command="audit simulations/configs/demo.toml --set strategy.kind=dp_fed_sgd --runs 200",
        look="Look at the chart: if the claim holds, no attack reaches the shaded area. The measured epsilon stays "
        "below the claimed one, and close enough to it that a gross mistake would show.",
        quietly=("--workers", "0"),
    ),
)
PAGE = """\
# Gallery

Reports of short runs, as they are: each is one file that needs no server, fits a telephone and follows its reader's
light or dark setting. `make site` makes them by the commands above them, in less than a minute.
"""
TABLE = """\
The table holds made-up trips of 3,000 people: <a href="commute.csv" download>commute.csv</a>. The configuration is
<a href="commute.toml" download>commute.toml</a>:
"""
PLAN = """\
A plan opens no data: the table of this configuration is not even there. Look at `noise` beside `signal`, and at
`users_needed` beside `users`; a third of the people takes part in each round, and a test of its own, with its share of
the budget, decides whether the model moves.
"""


def page() -> str:
    """Return the page, which shows the reports that `make` makes."""
    planned = [f"```\nuserdp plan simulations/configs/{PLANNED}\n```\n", PLAN, plan(PLANNED)]
    return "\n".join([PAGE, *map(_part, SHOWN), "## A plan\n", *planned, ""])


def _part(one: Shown) -> str:
    file = f"{one.name}.html"
    table = [TABLE, f"```toml\n{COMMUTE.read_text(encoding='utf-8')}```\n"] if COMMUTE.name in one.command else []
    frame = f'<iframe class="report" src="{file}" title="{one.title}: the report" loading="lazy"></iframe>\n'
    look = f'{fill(one.look)}\n\n<a href="{file}">The whole report</a>:\n'
    return "\n".join([f"## {one.title}\n", f"```\nuserdp {one.command}\n```\n", *table, look, frame])


def make(folder: Path = FOLDER) -> bool:
    """Make the reports of the page, and return True; False if they are there and nothing changed since."""
    mark, wanted = folder / ".made", _digest()
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(COMMUTE, folder)
    trips().to_csv(folder / "commute.csv", index=False)
    with ThreadPoolExecutor(max_workers=2) as pool:
        reports = list(pool.map(lambda one: _report(one, folder), SHOWN))
    for one, report in zip(SHOWN, reports, strict=True):
        (folder / f"{one.name}.html").write_text(report, encoding="utf-8")
    mark.write_text(wanted, encoding="utf-8")
    return True


def trips() -> pd.DataFrame:
    """Return made-up people's ways to work: short ones on foot, long ones by car, and in the rain fewer by bicycle."""
    rng = np.random.default_rng(0)
    rows = PEOPLE * TRIPS
    km = rng.gamma(2.0, 3.0, rows).clip(0, 30).round(1)
    weather = rng.choice(["sun", "rain", "snow"], rows, p=[0.6, 0.3, 0.1])
    wet = np.select([weather == "rain", weather == "snow"], [1.0, 2.0], 0.0)
    habits = np.repeat(rng.normal(0, 0.5, (PEOPLE, 3)), TRIPS, axis=0)
    scores = np.stack([3 - 1.2 * km - 0.2 * wet, 1.5 - 0.25 * km - 1.2 * wet, np.zeros(rows)], axis=1) + habits
    mode = np.array(["foot", "bicycle", "car"])[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]
    person = np.repeat([f"person {number}" for number in range(PEOPLE)], TRIPS)
    return pd.DataFrame({"person": person, "km": km, "weather": weather, "mode": mode})


def _report(one: Shown, folder: Path) -> str:
    """Run the command in a folder of its own, so that no report names a place on this machine."""
    first, *_ = commands = [words.split() for words in (one.after, one.command) if words]
    config = first[1]
    with TemporaryDirectory(prefix="gallery-") as place:
        there = Path(place) / config
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / config if config == COMMUTE.name else ROOT / config, there)
        if config == COMMUTE.name:
            shutil.copy(folder / "commute.csv", there.parent)
        program = [sys.executable, "-P", "-c", "from simulations.cli import main; main()"]
        for words in commands:
            done = subprocess.run(
                [*program, *words, *one.quietly],
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"userdp {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        (report,) = Path(place).rglob("card.html" if one.after else "report.html")
        return report.read_text(encoding="utf-8").replace(f"{place}/", "")


def _digest() -> str:
    """Return a digest of all that the reports follow from."""
    packages = [ROOT / package for package in ("userdp", "strategies", "simulations")]
    files = [file for package in packages for kind in ("py", "toml", "md") for file in package.rglob(f"*.{kind}")]
    made = hashlib.sha256()
    for file in [*sorted(files), Path(__file__), COMMUTE]:
        made.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return made.hexdigest()

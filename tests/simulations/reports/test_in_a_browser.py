"""Pages on a telephone, light and dark: as wide as the window, and with text that can be read. Needs Chromium."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from examples import COMPARISON, call, changed
from helpers_browser import SCHEMES, check_seen, measured, needs_chromium

from simulations.api.comparing import compare
from simulations.api.training import train
from simulations.config.run_config import parse_config
from simulations.reports.card import render_card
from simulations.runs.run import run

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    needs_chromium,
]


def trips(people=600, each=5) -> pd.DataFrame:
    """Three classes, whose table and whose metrics are the widest that a report has."""
    rng = np.random.default_rng(0)
    km = rng.uniform(0, 20, people * each)
    scores = np.stack([4 - 1.5 * km, 3 - 0.4 * km, np.zeros_like(km)], axis=1)
    way = np.array(["on foot", "by bicycle", "by car"])[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]
    return pd.DataFrame({"person": np.repeat(np.arange(people).astype(str), each), "km": km, "way": way})


DECLARED = {
    "user": "person",
    "features": ["km"],
    "ranges": {"km": [0, 20]},
    "target": "way",
    "target_levels": ["on foot", "by bicycle", "by car"],
    "all_users": 600,
    "delta": 1e-6,
    "problem": "softmax",
}


def site(folder: Path, gallery: str) -> dict[str, Path]:
    """The first page and the gallery as mkdocs makes them, without the reference and the search, which take long."""
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "README.md", folder / "docs" / "index.md")
    (folder / "docs" / "gallery.md").write_text(gallery, encoding="utf-8")
    for file in ("site.css", "user-level.svg"):
        shutil.copy(ROOT / "docs" / file, folder / "docs")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "docs", "site_dir": "site", "strict": False}
    settings |= {"plugins": [], "hooks": [], "nav": ["index.md", "gallery.md"], "extra": {}}
    (folder / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")  # YAML contains JSON
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(folder / "mkdocs.yml")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {"first page": folder / "site" / "index.html", "gallery": folder / "site" / "gallery.html"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory, module_of) -> dict[str, Path]:
    """A page of each kind; without the site's where its builder is not installed."""
    folder = tmp_path_factory.mktemp("pages")
    train(trips(), epsilon=4.0, **DECLARED).report(folder / "run.html")
    cost = "free, tuned on public synthetic data"
    search = {"cost": cost, "public_seed": 1000, "search": {"dp_fed_sgd": {"clip_norm": [0.3, 1.0]}}}
    kinds = ["auto", "dp_fed_sgd", "sample_clipped_sgd"]
    together = COMPARISON | {"strategy": [{"kind": kind} for kind in kinds], "tuning": search}
    compare(together, directory=folder / "comparison", progress=False)
    config = changed(data__dimension=256, strategy={"kind": "dp_fed_sgd", "rounds": 2, "clip_norm": 1.0})
    (folder / "audit.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    assert call("audit", folder / "audit.toml", "--one-run", "--output", folder / "audits").exit_code == 0
    (audited,) = folder.glob("audits/*/report.html")
    found = {"run": folder / "run.html", "comparison": folder / "comparison" / "report.html", "audit": audited}
    found["card"] = render_card(run(parse_config(changed()), directory=folder / "small").directory)
    return found | (site(folder, module_of("making.gallery").page()) if find_spec("material") else {})


@pytest.fixture(scope="module", params=SCHEMES)
def shown(request, pages, tmp_path_factory) -> tuple[str, dict[str, dict]]:
    """A scheme, and what is measured on each page in it."""
    return request.param, measured(pages, request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("page", ["run", "card", "comparison", "audit", "first page", "gallery"])
def test_a_page_on_a_telephone_is_as_wide_as_the_window_and_can_be_read(shown, page):
    scheme, found = shown
    if page not in found:
        pytest.skip("the site's builder is not installed: pip install -e '.[docs]'")
    check_seen(found[page], scheme)


def test_a_page_that_is_too_wide_and_too_pale_is_noticed(tmp_path):
    text = '<p style="width: 400px">too pale</p><b style="color: #000">fine</b>'
    page = f'<!doctype html><body style="background: #fff; color: #888">{text}'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    one = measured({"page": tmp_path / "page.html"}, "dark", tmp_path)["page"]
    assert one["wide"] == 408 > one["window"]
    assert (one["background"], one["texts"], one["faint"]) == (1.0, 2, ["too pale: 3.54"])

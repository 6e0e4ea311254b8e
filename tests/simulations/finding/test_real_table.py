"""Facts of a public table beside those that its documentation declares, and the numbers of docs/find.md."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from simulations import find
from userdp.mechanisms import UserQuantile

ROOT = Path(__file__).resolve().parents[3]
MEASURED = json.loads((ROOT / "research/results/finding.json").read_text(encoding="utf-8"))


def test_the_facts_of_students_ratings_are_near_what_their_documentation_declares(public_cache):
    found = find(
        public_cache / "InstEval.parquet",
        user="s",
        all_users=2972,
        numbers=["y", "lectage"],
        words=["dept", "service"],
        target="y",
        epsilon=2.0,
        delta=1e-6,
    )
    assert found.settings["categorical"] == {
        "dept": [str(dept) for dept in range(1, 16) if dept != 13],
        "service": ["0", "1"],
    }
    (low, high), (first, last) = found.settings["target_range"], found.settings["ranges"]["lectage"]
    assert 0 <= low <= 1
    assert 5 <= high <= 6.5
    assert 0 <= first <= 1
    assert 6 <= last <= 8
    assert 30 <= found.settings["max_samples"] <= 60


@pytest.mark.slow
def test_a_model_with_found_facts_is_as_good_as_one_with_declared_facts(public_cache, monkeypatch):
    """Pupils' scores, one of the five splits behind the table of the page."""
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    import finding

    monkeypatch.setenv("USERDP_DATA", str(public_cache))
    row = next(finding.models("chem97", seeds=1))
    assert row["r2_found"] >= max(0.3, row["r2_declared"] - 0.05)


def test_found_facts_lose_little_of_a_model_in_the_table_of_the_page():
    for row in MEASURED["models"]:
        assert row["r2_found"] >= row["r2_declared"] - 0.01
        assert set(row["found_ranges"]) == set(row["declared_ranges"])


@pytest.mark.parametrize("row", MEASURED["quantiles"], ids=lambda row: f"{row['share']} at {row['epsilon']}")
def test_the_errors_of_quantiles_in_the_table_of_the_page_are_ours(row):
    """The part that follows from the law alone; OpenDP's was drawn."""
    values, grid = np.sort(np.random.default_rng(0).lognormal(3, 1, 2000)), np.geomspace(0.1, 1e5, 20_001)
    mechanism = UserQuantile(row["share"], row["epsilon"], "add_or_remove")
    scores = mechanism.scores(np.arange(2000), values, grid).values
    ours = -softmax(row["epsilon"] * scores / (2 * mechanism.sensitivity)) @ scores
    assert ours == pytest.approx(row["ours"])
    assert ours <= 1.1 * row["opendp"]

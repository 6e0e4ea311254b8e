"""Hashed films in a configuration: what follows from the declarations, and the ready-made comparison, shrunken."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest
from examples import changed

from simulations.comparison.config import parse_comparison
from simulations.comparison.jobs import compare
from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem
from userdp.errors import BadInput

CONFIG = Path(__file__).resolve().parents[3] / "simulations" / "configs" / "movielens.toml"
SAMPLE_LEVEL = {"sample_clipped_sgd", "poisson_sample_sgd"}


def section(tmp_path, **changes):
    form = {"user": "who", "codes": ["film", "genre", "year"], "buckets": 40, "target": "rating"}
    return {"kind": "table", "path": str(tmp_path / "absent.csv"), **form, "target_range": [0.5, 5.0], **changes}


def test_sparsity_and_length_of_hashed_samples_follow_from_the_declarations_alone(tmp_path):
    def problem_of(**changes):
        raw = changed(problem={"kind": "sparse_squared"}, data=section(tmp_path, **changes))
        return build_problem(parse_config(raw))

    problem = problem_of()
    assert (problem.dimension, problem.sparsity, problem.feature_norm) == (40, 3, 1.0)
    assert (problem.family.low, problem.family.high) == (-1.0, 1.0)
    assert problem_of(buckets=2).sparsity == 2


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("squared", {}, "'squared' needs dense samples, and the data's are sparse"),
        ("sparse_squared", {"buckets": None}, "buckets is missing"),
        ("sparse_squared", {"buckets": 0}, "data.buckets = 0"),
        ("sparse_squared", {"codes": "film"}, "buckets = 40: cells are hashed for a LIST of codes"),
        ("sparse_squared", {"levels": 3}, "levels describes one column of codes"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(tmp_path, kind, changes, told):
    data = {name: value for name, value in section(tmp_path, **changes).items() if value is not None}
    with pytest.raises(BadInput, match=told):
        build_problem(parse_config(changed(problem={"kind": kind}, data=data)))


@pytest.mark.slow
def test_the_comparison_shows_what_is_promised_to_a_user_and_to_a_sample(public_cache, tmp_path):
    raw = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    raw["data"] |= {"users": 100, "samples": 2000, "buckets": 60, "cache": str(public_cache)}
    raw["seeds"] = 1
    for strategy in raw["strategy"]:
        strategy["rounds"] = 2
    compare(parse_comparison(raw), workers=0, directory=tmp_path)
    results = pd.read_parquet(tmp_path / "results.parquet")
    assert set(results["strategy"]) == {strategy["kind"] for strategy in raw["strategy"]}
    assert results["error_private"].isna().all()
    assert (results["unit"] == "user").all()
    assert results["spent_epsilon"].to_numpy() == pytest.approx(4.0, rel=1e-3)
    sample_level = results[results["strategy"].isin(SAMPLE_LEVEL)]
    assert len(sample_level) == 2
    assert results.drop(sample_level.index)["sample_level_epsilon"].isna().all()
    # A user holds 20 samples: a sample is promised far more than a user.
    assert sample_level["sample_level_epsilon"].between(0, 4.0 / 10, inclusive="neither").all()
    assert (results["reference_private"] < results["initial"]).all()
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "for a user of 20 samples by group privacy: noise as for epsilon =" in report

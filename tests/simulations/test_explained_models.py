"""Coefficients of a run: the page's example, the command, the report, and models that are saved and loaded."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import userdp
from simulations.cli import app
from simulations.records.coefficients import HIDDEN
from simulations.reports.coefficients import not_drawn
from userdp.errors import BadInput

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coefficients.md"
TRUTH = {"dose": -1.5, "sex=m": 6.0, "intercept": 120.0}


EXAMPLE, RATES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The model of the page's example, with its directory."""
    found: dict = {}
    folder = tmp_path_factory.mktemp("runs") / "run"
    code = EXAMPLE.replace("    epsilon=1.0,", f"    epsilon=1.0, directory={str(folder)!r},")
    exec(compile(code, "docs/coefficients.md", "exec"), found)
    return found["model"], folder


def plain(**settings):
    """A run of 300 people without a share for coefficients."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"person": np.repeat(np.arange(300), 3), "x": rng.uniform(0, 1, 900)})
    people["y"] = people.x + rng.normal(0, 0.1, 900)
    known = {"user": "person", "features": ["x"], "ranges": {"x": [0, 1]}, "target": "y", "target_range": [-1, 2]}
    given = {"epsilon": 4.0, "delta": 1e-5, "problem": "squared", "progress": False}
    return userdp.train(people, **known, **(given | settings))


@pytest.mark.slow
def test_the_example_of_rates_finds_those_of_the_public_table(public_table):
    """Rates a year that a fit without privacy has in groups of age, at the mean value of cars."""
    table = pd.read_parquet(public_table("dataCar.parquet"))
    found: dict = {}
    exec(compile(RATES, "docs/coefficients.md", "exec"), found)
    rows = found["drivers"].coefficients()
    sums = table.groupby("agecat")[["numclaims", "exposure"]].sum()
    rates = np.log(sums["numclaims"] / sums["exposure"])
    for group in range(2, 7):
        row = rows.loc[f"agecat={group}"]
        assert abs(row.estimate - (rates[group] - rates[1])) < 3 * row.standard_error
    start = rows.loc["intercept"]
    assert abs(start.estimate + rows.loc["veh_value"].estimate * table["veh_value"].mean() - rates[1]) < 0.5


def test_the_example_finds_what_the_table_was_made_of(trained):
    table = trained[0].coefficients()
    for name, value in TRUTH.items():
        row = table.loc[name]
        assert abs(row.estimate - value) < 4 * row.standard_error
        assert row.low < row.estimate < row.high
        assert 0 < row.standard_error < (3.0 if name == "intercept" else 1.0)
    assert table.unit.to_dict() == {
        "dose": "per 1 of dose",
        "sex=m": "against sex=f",
        "intercept": "at 0 of all numbers",
    }


def test_the_command_prints_them_and_the_report_draws_them(trained):
    model, folder = trained
    shown = CliRunner().invoke(app, ["report", str(folder), "--coefficients"])
    assert shown.exit_code == 0
    assert "against sex=f" in shown.output
    assert "interval" in shown.output
    rows = json.loads(CliRunner().invoke(app, ["report", str(folder), "--coefficients", "--json"]).output)
    assert [row["coefficient"] for row in rows] == list(model.coefficients().index)
    assert rows == model.result["coefficients"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<h2>Coefficients</h2>" in page
    assert "coefficients with intervals" in page
    assert '<table class="titled">' in page.partition("<h2>Coefficients</h2>")[2].partition("<h2>")[0]  # on a telephone


def test_a_saved_model_keeps_its_intervals(trained, tmp_path):
    again = userdp.load_model(trained[0].save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(again.coefficients(), trained[0].coefficients())


def test_with_secure_noise_a_copy_for_others_has_them(tmp_path):
    # Secure noise has no seed: at this epsilon it hides the curvature hardly ever.
    secure = {"users": 240, "epsilon": 40.0, "noise": "secure", "strategy": {"kind": "auto", "coefficients": 0.5}}
    model = plain(directory=tmp_path / "run", output={"reference": False}, **secure)
    assert model.coefficients().standard_error.notna().any()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--released", str(tmp_path / "others")])
    assert done.exit_code == 0, done.output
    pd.testing.assert_frame_equal(userdp.load_model(tmp_path / "others").coefficients(), model.coefficients())


def test_without_a_share_they_are_those_of_the_model_without_errors(tmp_path):
    model = plain(directory=tmp_path / "run")
    table = model.coefficients()
    low, high = model.predict(pd.DataFrame({"x": [0.0, 1.0]})).prediction
    assert table.estimate["x"] == pytest.approx(high - low, rel=1e-4)
    assert table.estimate["intercept"] == pytest.approx(low, abs=1e-4)
    assert table.standard_error.isna().all()
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--coefficients"])
    assert "strategy.coefficients = 0.5" in " ".join(shown.output.split())
    both = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--coefficients", "--card"])
    assert both.exit_code == 2
    assert "--card and --coefficients are two answers: give one of them" in both.output
    written = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--json"])
    assert json.loads(written.stdout) == {"file": str(tmp_path / "run" / "report.html")}


def test_where_noise_hides_the_errors_the_table_says_so(tmp_path):
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"person": np.arange(60), "x": rng.uniform(0, 1, 60), "y": rng.uniform(0, 1, 60)})
    known = {"user": "person", "features": ["x"], "ranges": {"x": [0, 1]}, "target": "y", "target_range": [0, 1]}
    given = {"epsilon": 0.5, "delta": 1e-4, "problem": "squared", "output": {"anyway": True, "reference": False}}
    model = userdp.train(
        people, **known, **given, strategy={"kind": "auto", "coefficients": 0.5}, directory=tmp_path, progress=False
    )
    assert model.coefficients().standard_error.isna().all()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert HIDDEN in page
    assert "Not drawn, because" in page


def test_a_report_names_the_coefficients_that_its_picture_lacks():
    row = {"unit": "1", "estimate": 1.0, "standard_error": 0.1, "interval": [0.8, 1.2], "span": 1.0}
    hidden = {"standard_error": None, "interval": None}
    drawn = [row | {"coefficient": f"c{number}"} for number in range(42)]
    assert not_drawn(drawn[:40]) == ""
    assert not_drawn(drawn) == "2 more are in the table alone."
    lost = [one | hidden for one in drawn[:12]]
    assert not_drawn(lost[:2]) == f"Not drawn, because {HIDDEN}: c0, c1."
    assert not_drawn(lost).endswith("c9, 2 more.")


def test_a_model_without_coefficients_says_which_have_them():
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"person": np.arange(300), "x": rng.uniform(0, 1, 300), "y": rng.choice(list("abc"), 300)})
    known = {"user": "person", "features": ["x"], "ranges": {"x": [0, 1]}, "target": "y"}
    model = userdp.train(
        people, **known, target_levels=list("abc"), epsilon=4.0, delta=1e-5, problem="softmax", progress=False
    )
    with pytest.raises(BadInput, match=r"problem\.kind = 'softmax'.*there are no coefficients; train a linear model"):
        model.coefficients()

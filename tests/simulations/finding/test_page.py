"""The example of docs/find.md, run as written: the file by the command, and the program."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import call

PAGE = (Path(__file__).resolve().parents[3] / "docs/find.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[0]


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """Three visits of each of 4,000 patients; pressure grows with age."""
    rng, rows = np.random.default_rng(0), 12_000
    age = np.repeat(rng.integers(20, 90, 4000), 3)
    days = pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D")
    visits = {"patient": np.repeat(np.arange(4000), 3), "age": age, "pressure": 90 + age + rng.normal(0, 5, rows)}
    visits |= {"ward": rng.choice(["north", "south"], rows), "admitted": days.strftime("%Y-%m-%d")}
    pd.DataFrame(visits).round(1).to_csv(tmp_path / "visits.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_finds_the_facts_of_the_page(visits):
    (visits / "facts.toml").write_text(block("toml"), encoding="utf-8")
    answer = call("find", "facts.toml")
    assert answer.exit_code == 0, answer.output
    data = tomllib.loads((visits / "declared.toml").read_text(encoding="utf-8"))["data"]
    assert data["path"] == str(visits / "visits.csv")
    assert data["categorical"] == {"ward": ["north", "south"]}
    assert 0 <= data["ranges"]["age"][0] <= 25
    assert 80 <= data["ranges"]["age"][1] <= 110
    assert [int(day[:4]) for day in data["dates"]["admitted"]] == pytest.approx([2019, 2024], abs=1)
    assert 3 <= data["max_samples"] <= 4


@pytest.mark.slow
def test_the_program_of_the_page_trains_a_model_that_has_learnt(visits, capsys):
    names = {}
    exec(compile(block("python"), "docs/find.md", "exec"), names)
    assert names["model"].metrics["r2"] > 0.5
    facts, model = names["found"].guarantee, names["model"].guarantee
    assert facts.relation == model.relation
    assert facts.epsilon + model.epsilon <= 8.0
    assert facts.delta + model.delta <= 1.1e-6 * (1 + 1e-9)
    assert "(2, 1e-07)-differential privacy for replacing one whole user" in capsys.readouterr().out
    assert names["found"].settings["target_range"][1] > 165

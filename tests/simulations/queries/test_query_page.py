"""The examples of docs/query.md run, and its table has every statistic with its keys."""

import contextlib
import io
import re
import tomllib

import numpy as np
import pandas as pd
from helpers_flower import ROOT

from simulations import query
from userdp.queries.registry import STATISTICS

PAGE = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")


def block(language):
    """All blocks of a language, one after the other: the page adds a section for each question."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def visits(users=2000):
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(users), 2)
    return pd.DataFrame(
        {
            "person": who,
            "age": rng.integers(18, 99, users)[who],
            "cost": rng.gamma(2, 40, len(who)).round(2),
            "ward": rng.choice(["north", "south"], len(who)),
            "sex": rng.choice(["f", "m"], users)[who],
        }
    )


def test_the_query_of_the_page_is_answered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    visits().to_csv("visits.csv", index=False)
    raw = tomllib.loads(block("toml"))
    found = query(raw, progress=False)
    assert set(found.table["statistic"]) == {one["statistic"] for one in raw["ask"]}
    (mean,) = found.table[found.table["statistic"] == "mean"].itertuples()
    assert mean.low < visits()["age"].mean() < mean.high


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    visits().to_csv("visits.csv", index=False)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block("python"), {})
    assert "Guarantee: (1, 1e-06)-differential privacy for replacing one whole user" in printed.getvalue()


def test_the_page_names_every_statistic_with_its_keys():
    for name, kind in STATISTICS.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)$", PAGE, re.MULTILINE)
        for key in kind.model_fields.keys() - {"statistic", "weight", "per", "where"}:
            assert f"`{key}`" in row.partition("|")[0], (name, key)

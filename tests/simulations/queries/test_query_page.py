"""The examples of docs/query.md run, and its table has every statistic with its keys."""

import contextlib
import io
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
from helpers_flower import ROOT

from simulations import query
from userdp.queries.registry import STATISTICS

PAGE = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")


def block(language):
    """All blocks of a language, one after the other: the page adds a section for each question."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


TABLE = "rwm5yr.parquet"


def visits(users=6127):
    """People as in the public table."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(users), rng.integers(1, 6, users))
    columns = {"age": rng.integers(25, 60, users)[who], "docvis": rng.poisson(rng.gamma(0.6, 5, users)[who])}
    return pd.DataFrame({"id": who, **columns, "female": who % 2, "outwork": rng.integers(0, 2, users)[who]})


@pytest.fixture(params=["made-up", "public"])
def table(request, tmp_path, monkeypatch):
    """The page's table, in the folder where the test works."""
    if request.param == "public":
        return pd.read_parquet(request.getfixturevalue("public_table")(TABLE))
    monkeypatch.chdir(tmp_path)
    visits().to_parquet(TABLE)
    return visits()


def test_the_query_of_the_page_is_answered(table):
    raw = tomllib.loads(block("toml"))
    found = query(raw, progress=False)
    assert set(found.table["statistic"]) == {one["statistic"] for one in raw["ask"]}
    people = table.groupby("id")
    assert len(people) == raw["data"]["all_users"]
    older = table[(table["female"] == 1) & (table["age"] >= 60)]["id"].nunique()
    spent = table["docvis"].clip(0, 30).groupby(table["id"]).sum()
    truth = {"mean": people["age"].mean().mean(), "sum": spent.clip(0, 100).sum(), "count": older}
    for name, value in truth.items():
        (one,) = found.table[found.table["statistic"] == name].itertuples()
        assert abs(one.estimate - value) < 4 * one.standard_error, name
    assert found.table["estimate"].notna().all()


@pytest.mark.usefixtures("table")
def test_the_python_of_the_page_runs():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block("python"), {})
    assert "Guarantee: (1, 1e-06)-differential privacy for replacing one whole user" in printed.getvalue()


def test_the_page_names_every_statistic_with_its_keys():
    for name, kind in STATISTICS.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)$", PAGE, re.MULTILINE)
        for key in kind.model_fields.keys() - {"statistic", "weight", "per", "where"}:
            assert f"`{key}`" in row.partition("|")[0], (name, key)

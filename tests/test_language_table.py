"""The measurements of research/language.py: its cells, their configurations, and the shares that it reports."""

import sys

import pandas as pd
import pytest


@pytest.fixture
def script(module_of):
    return module_of("language")


@pytest.fixture
def page(module_of):
    return module_of("making.language")


def row(model, strategy, epsilon, seed, bits, initial=2.0, error=None):
    found = {
        "data": "roles",
        "model": model,
        "strategy": strategy,
        "epsilon": epsilon,
        "seed": seed,
        "bits": bits,
        "initial": initial,
    }
    return found | {"error": error}


def test_cells_are_all_models_budgets_and_strategies_and_epsilon_eight_comes_first(script):
    cells = script.cells("roles")
    assert len(set(cells)) == len(cells)
    private = [cell for cell in cells if cell.epsilon]
    assert len(private) == len(script.EPSILONS) * len(script.SEEDS) * (2 * len(script.MODELS) + 2)
    assert [cell.epsilon for cell in private[:8]] == [8.0] * 8
    for seed in script.SEEDS:
        assert script.Cell("roles", "lora", script.NO_PRIVACY, 0.0, seed) in cells
    assert {cell.model for cell in script.cells("chats")} == {"trivial", "lora"}


def test_a_stopped_table_goes_on_where_it_stood_and_failed_cells_run_again(script, tmp_path):
    path, (first, second, third) = tmp_path / "t.csv", script.cells("roles")[:3]
    for cell, error in ((first, None), (second, "no")):
        script.add(path, row(cell.model, cell.strategy, cell.epsilon, cell.seed, 2.5, error=error))
    assert script.missing(script.measured(path), [first, second, third]) == [second, third]
    script.add(path, row(second.model, second.strategy, second.epsilon, second.seed, 2.25))
    assert script.missing(script.measured(path), [first, second, third]) == [third]
    assert sorted(script.measured(path)["bits"]) == [2.25, 2.5]


def test_shares_are_of_the_way_from_the_pretrained_model_to_no_privacy_in_the_same_seed(script, page):
    rows = [
        *(row("lora", "non_private", 0.0, seed, to, initial) for seed, initial, to in ((0, 3.0, 2.0), (1, 3.5, 2.5))),
        *(row("lora", "uls", 8.0, seed, bits, 3.0) for seed, bits in ((0, 2.5), (1, 2.75))),
        row("full", "els", 1.0, 0, 9.0, error="failed"),
        row("trivial", "trivial", 0.0, 0, 4.0),
    ]
    table = pd.DataFrame(rows, columns=list(script.COLUMNS))
    found = page.summary(table).set_index(["model", "strategy", "epsilon"])
    assert found.loc[("lora", "uls", 8.0), "share"] == pytest.approx((0.5 + 0.75) / 2)
    assert found.loc[("lora", "uls", 8.0), "seeds"] == 2
    assert found.loc[("pretrained", "none", 0.0), "bits"] == pytest.approx(3.25)
    assert found.loc[("trivial", "trivial", 0.0), "share"] == pytest.approx(-1.0)
    assert ("full", "els", 1.0) not in found.index
    lines = page.markdown(table).splitlines()
    assert lines[0].startswith("| | no privacy | epsilon 1 |")
    assert "| LoRA, users clipped |  |  |  |  | 2.625 ± 0.177 (62 %) |" in lines


def test_rows_of_a_seed_began_at_one_model(script):
    """A base that is made again on another machine differs in last digits, and so do all rows that began at it."""
    table = script.measured()
    began = table[table["error"].isna() & table["model"].isin(["lora", "full"])].groupby(["data", "seed"])["initial"]
    assert (began.nunique() == 1).all(), began.unique()


def test_the_page_is_right_about_whole_models(script, page):
    table = script.measured()
    found = page.summary(table[table["data"] == "roles"]).set_index(["model", "strategy"])
    assert (found.loc[("full", "uls"), "share"] > 1).all()
    assert (found.loc[("scratch", "uls"), "share"] < 0).all()
    parameters = table[table["error"].isna()].groupby("model")["parameters"].max()
    assert 45 < parameters["full"] / parameters["lora"] < 55


def test_the_page_names_every_cell(script, page):
    assert {(cell.model, cell.strategy) for cell in script.cells("roles")} | {("pretrained", "none")} == set(page.ROWS)
    assert set(page.EPSILONS) == set(script.EPSILONS)
    assert set(page.DATA) == {"roles", "chats"}


def test_chats_are_a_table_of_who_wrote_what_with_the_settings_of_the_roles(script, module_of, tmp_path, monkeypatch):
    lines = ["=== Ann [~a@b]  has joined #ubuntu", "[03:21] <Ann_> hello  ", "[03:22] <bob> NA", "[03:22] <bob> "]
    for part, more in (("train", ["[03:23] <ANN> there"]), ("dev", [])):  # parts of a day overlap
        (tmp_path / "data" / part).mkdir(parents=True)
        (tmp_path / "data" / part / "2004-11-15_03.raw.txt").write_text("\n".join(lines + more))
    monkeypatch.setattr(sys, "argv", ["chats.py", str(tmp_path), str(tmp_path / "chats.csv")])
    module_of("chats").main()
    table = pd.read_csv(tmp_path / "chats.csv", keep_default_na=False)
    assert sorted(table.itertuples(index=False, name=None)) == [("@ann", "hello"), ("@ann", "there"), ("@bob", "NA")]
    config = script.Cell("chats", "lora", "uls", 2.0, 1).config(script.Material(tmp_path, tmp_path / "chats.csv"))
    roles = script.Cell("roles", "lora", "uls", 2.0, 1).config(script.Material(tmp_path))
    assert (config.data.kind, config.data.user, config.data.all_users) == ("table", "person", 2)
    assert (config.strategy, config.privacy) == (roles.strategy, roles.privacy)
    assert (config.data.max_samples, config.data.sequence) == (roles.data.max_samples, roles.data.sequence)

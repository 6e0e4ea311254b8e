"""The shipped configuration of a language model, with a tiny model in the place of the one that it names."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import call

pytest.importorskip("peft", reason="needs userdp[language]")

from simulations.config.run_config import load_config, parse_config
from simulations.runs.build import make_plan

FILE = Path(__file__).resolve().parents[3] / "simulations" / "configs" / "language.toml"
USERS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory, module_of):
    """A folder with a tiny base model, and a table of a few users' speeches."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text("Wer wagt, gewinnt. " * 80, encoding="utf-8")
    script = module_of("pretrain")
    settings = script.Pretraining(steps=2, layers=1, width=32)
    script.pretrain(folder / "base", [folder / "text.txt"], settings, lambda done, of, reached: None)
    speeches = pd.DataFrame({"role": np.arange(3 * USERS) % USERS, "text": ["Ach, so ist es! "] * 3 * USERS})
    speeches.to_parquet(folder / "speeches.parquet")
    return folder


def test_the_file_is_short_loads_plans_and_survives_writing_out(folder):
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 30
    config = load_config(FILE, [f"problem.model=hf:{folder / 'base'}"])
    assert config.data.sequence.tokenizer == config.problem.model
    assert parse_config(tomllib.loads(config.toml())) == config
    plan = make_plan(config)
    assert plan.guarantee.holds
    assert not plan.drowned


def test_a_table_of_texts_is_fine_tuned_on(folder, tmp_path):
    text = FILE.read_text(encoding="utf-8").replace('kind = "public"', f'kind = "table"\nall_users = {USERS}')
    text = text.replace('name = "gerdracor"', 'path = "speeches.parquet"\nuser = "role"')
    (folder / "run.toml").write_text(text.replace("hf:../../base", "hf:base"), encoding="utf-8")
    small = ("strategy.rounds=2", "strategy.cohort=6", "output.anyway=true", "output.reference=false")
    overrides = [part for one in (*small, "data.test_fraction=0.25") for part in ("--set", one)]
    outcome = call("run", folder / "run.toml", "--json", "--output", tmp_path, *overrides)
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert result["users"] == USERS - 3
    assert result["dimension"] == 2 * 8 * (32 + 32)
    assert result["metrics"]["bits"] > 0

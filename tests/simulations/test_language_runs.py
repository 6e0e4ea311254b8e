"""A language model from a configuration to a folder that transformers and peft load; the same on every engine."""

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from examples import call
from helpers import PATIENCE, forgive_ray
from helpers_flower import RUN, run_on_flower
from language_models import make_base

from simulations import load_model
from simulations.audit.one_run import audit_one_run
from simulations.config.run_config import load_config
from simulations.records.released_fields import field_of
from simulations.runs.build import build_problem
from simulations.runs.run import run
from userdp.errors import BadInput

peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
pytestmark = forgive_ray
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
WORDS = json.dumps(
    {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {f"w{code}": code for code in range(22)} | {"?": 22}, "unk_token": "?"},
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [],
    }
)
"""A tokenizer of words, as its library writes it."""
SONGS = 20
CONFIG = {
    "name": "tiny",
    "problem": {
        "kind": "torch",
        "model": "hf:base",
        "adapter": {"kind": "lora", "rank": 2, "targets": ["q_proj", "v_proj"]},
        "loss": "cross_entropy",
        "precision": "double",
    },
    "data": {
        "kind": "table",
        "path": "songs.csv",
        "user": "listener",
        "all_users": 40,
        "test_fraction": 0.2,
        "sequence": {"window": 8, "order": "time", "predict": "song", "levels": SONGS},
    },
    "privacy": {"epsilon": 8.0, "delta": 1e-5},
    "strategy": {"kind": "dp_fed_avg", "rounds": 2, "clip_norm": 0.5, "local_epochs": 2, "local_batch": 2},
    "output": {"reference": False},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    make_base(folder / "base")
    random = np.random.default_rng(0)
    rows = [f"l{user},{time},{random.integers(SONGS)}" for user in range(40) for time in range(20)]
    (folder / "songs.csv").write_text("\n".join(["listener,time,song", *rows]))
    (folder / "run.toml").write_text(tomli_w.dumps(CONFIG))
    return folder / "run.toml"


@pytest.fixture(scope="module")
def local(path, tmp_path_factory):
    return run(load_config(path), directory=tmp_path_factory.mktemp("local") / "run", report=False)


def agree(found, expected):
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)  # its normalisation computes in float32


def scores_of(saved, windows):
    """A run's scores of the steps of windows (N, L) that end with the step, and what the library's model is asked."""
    problem = saved.problem
    problem.engine.model.original.module.double()
    codes = torch.as_tensor(windows).long()
    seen = torch.cat([torch.ones((len(codes), 1), dtype=torch.long), codes[:, :-1]], 1)
    inputs = torch.cat([torch.zeros((len(codes), 1), dtype=torch.long), codes[:, :-1] + 1], 1)
    with torch.no_grad():
        return problem.module_at(saved.model)(inputs), seen


def test_an_adapter_gives_the_same_scores_in_peft(path, local, tmp_path):
    saved = load_model(local.directory)
    scores, seen = scores_of(saved, np.random.default_rng(1).integers(0, SONGS, (3, 8)))
    done = call("export", local.directory, "--transformers", tmp_path / "adapter", "--json")
    told = json.loads(done.stdout)
    assert told["files"] == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert {field_of("export: --json", name).kind for name in told} == {"public"}
    base = transformers.AutoModelForCausalLM.from_pretrained(path.parent / "base", dtype=torch.float64).eval()
    with torch.no_grad():
        without = base(input_ids=seen).logits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that peft still uses
            model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").double().eval()
        found = model(input_ids=seen).logits
    torch.testing.assert_close(found, scores, rtol=1e-9, atol=1e-12)
    assert (without - scores).abs().max() > 1e-3
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert saved.guarantee.sentence() in card
    assert all(f"- {one}\n" in card for one in saved.guarantee.assumptions)
    assert "256 numbers" in card
    assert "tags: [differential-privacy, user-level]" in card


def test_a_whole_model_gives_the_same_scores_in_transformers(path, tmp_path):
    raw = CONFIG | {"problem": {key: value for key, value in CONFIG["problem"].items() if key != "adapter"}}
    whole = path.with_name("whole.toml")
    whole.write_text(tomli_w.dumps(raw | {"strategy": {"kind": "non_private", "rounds": 1}}))
    (path.parent / "base" / "tokenizer_config.json").write_text("{}")
    trained = run(load_config(whole), directory=tmp_path / "run", report=False)
    saved = load_model(trained.directory)
    scores, seen = scores_of(saved, np.random.default_rng(1).integers(0, SONGS, (3, 8)))
    saved.to_transformers(tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer_config.json").read_text() == "{}"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=seen).logits, scores, rtol=1e-9, atol=1e-12)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "tags: []" in card
    with pytest.raises(BadInput, match="is not empty"):
        saved.to_transformers(tmp_path / "model")


def test_canaries_among_the_users_of_an_adapter_show_something_and_less_than_it_claims(path):
    clipped = 'strategy={kind="dp_fed_sgd", rounds=2, clip_norm=0.3, server_optimiser="adam"}'
    audited = audit_one_run(load_config(path, [clipped, "privacy.epsilon=12", "seed=1"]), canaries=200)
    assert audited.guarantee.relation == "replace_one"
    assert 1.0 < audited.measured <= audited.guarantee.epsilon


def test_one_form_is_asked_for_and_only_of_language_models(local, tmp_path):
    for forms in ((), ("--onnx", tmp_path / "a.onnx", "--transformers", tmp_path / "a")):
        refused = call("export", local.directory, *forms)
        assert (refused.exit_code, "give one of --onnx" in refused.stderr) == (2, True)


def test_a_folder_is_looked_for_beside_the_configuration(path):
    assert load_config(path).problem.model == f"hf:{path.parent / 'base'}"
    assert load_config(path, ['problem.model="hf:owner/name"']).problem.model == "hf:owner/name"
    assert load_config(path, ['problem.model="hf:./name"']).problem.model == f"hf:{path.parent / 'name'}"


def test_the_page_shows_a_configuration_that_plans_and_all_that_its_plan_tells_of_memory(path, tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "messages.toml").write_text(text)
    shutil.copytree(path.parent / "base", tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text(WORDS)
    (tmp_path / "base" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    short = ("--set", 'data.sequence={window=16, text="message"}')
    told = json.loads(call("plan", tmp_path / "messages.toml", "--json", *short).stdout)
    sizes = build_problem(load_config(tmp_path / "messages.toml", short[1:])).sizes()
    assert sizes["trained_parameters"] == 8 * 2 * 2 * (16 + 16)  # rank, targets, layers, both factors
    assert sizes.items() <= told["numbers"].items()
    assert all(f"`{name}`" in PAGE for name in sizes)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["users_per_node=1", 'kind="ray", workers=2'], ids=str)
def test_engines_and_layouts_give_the_same_adapter(path, local, tmp_path, engine):
    patient = f"engine={{{engine}, roster_timeout={PATIENCE}}}"  # actors import torch first
    agree(run(load_config(path, [patient]), directory=tmp_path / "run", report=False).model, local.model)


@pytest.mark.long
@pytest.mark.slow
def test_flowers_engine_gives_the_same_adapter(path, local, tmp_path):
    there = tmp_path / "run"
    run_on_flower(tmp_path / "home", RUN, 4, {"config": str(path), "roster_timeout": PATIENCE, "output": str(there)})
    assert json.loads((there / "result.json").read_text())["engine"] == "flower"
    agree(np.load(there / "model.npz")["x"], local.model)

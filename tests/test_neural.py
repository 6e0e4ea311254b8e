"""The promises of research/neural.py about its numbers, and a trial of it on few users."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from userdp.data.block import Block
from userdp.neural.samples import Windows

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("neural", "neural_data", "neural_loop", "neural_models", "neural_tools", "neural_worker")
TRIED = ("perceptron", "gru", "transformer")


@pytest.fixture
def scripts(module_of):
    return {name: module_of(name) for name in NAMES}


def rows(command, **seconds):
    return [command.Row("lstm", tool, [value], 500.0, 1e-7) for tool, value in seconds.items()]


def test_the_command_knows_the_models_without_torch(scripts):
    models = {name: model.data for name, model in scripts["neural_models"].MODELS.items()}
    assert models == scripts["neural"].MODELS


def test_ours_must_beat_the_faster_of_both_by_a_tenth(scripts):
    command = scripts["neural"]
    assert command.too_slow(rows(command, loop=2.0, pfl=1.0, ours=0.9)) == []
    assert "0.910 s, must be at most 0.900" in command.too_slow(rows(command, loop=2.0, pfl=1.0, ours=0.91))[0]
    assert "TOO SLOW" in command.too_slow(rows(command, loop=1.0, pfl=2.0, ours=0.91))[0]
    assert command.too_slow(rows(command, flower=0.1, ours=5.0)) == []


def test_a_model_that_fails_or_takes_too_much_memory_is_listed(scripts):
    command = scripts["neural"]
    failing = command.Row("gru", "ours", error="RuntimeError: no")
    assert command.too_slow([failing]) == ["FAILS: gru: RuntimeError: no"]
    large = command.Row("gru", "ours", [1.0], 1025.0)
    assert command.too_slow([large]) == ["TOO LARGE: gru takes 1025 MiB, must be at most 1024"]


@pytest.mark.parametrize(("difference", "lines"), [(None, 0), (1e-4, 0), (1.1e-4, 1), (float("nan"), 1)])
def test_other_sums_than_the_loops_are_listed(scripts, difference, lines):
    command = scripts["neural"]
    assert len(command.unequal([command.Row("lstm", "pfl", [1.0], 1.0, difference)])) == lines


def test_a_tool_that_fails_is_a_line_of_the_table(scripts):
    command = scripts["neural"]
    measured = [*rows(command, loop=2.0, ours=1.0), command.Row("lstm", "pfl", error="RuntimeError: no")]
    _, loop, ours, pfl = command.table(measured, heading=True).splitlines()
    assert loop.split(" | ")[-1].strip() == "0.50"
    assert ours.split(" | ")[-1].strip() == ""
    assert pfl.endswith("fails: RuntimeError: no")


def test_names_that_are_unknown_are_refused_with_those_that_there_are(scripts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["neural.py", "--models", "lstm,mlp"])
    with pytest.raises(SystemExit):
        scripts["neural"].parsed()
    assert "'mlp' is unknown; there are perceptron, embedding" in capsys.readouterr().err


def test_users_have_the_sizes_that_are_said_with_and_without_the_real_ones(scripts, monkeypatch, tmp_path):
    data, rng = scripts["neural_data"], np.random.default_rng(1)
    monkeypatch.setenv("USERDP_DATA", str(tmp_path))
    people = data.characters(rng)
    sizes = np.diff(people.offsets)
    assert people.source == "random texts"
    assert len(sizes) == data.ROLES
    assert sizes.min() >= data.LEAST_CHARACTERS // data.WINDOW
    assert sizes.max() == data.WINDOWS
    assert people.inputs.shape == people.targets.shape == (sizes.sum(), data.WINDOW)
    writers = data.digits(tmp_path / "digits.npz", rng)
    assert len(writers.offsets) == data.WRITERS + 1
    assert np.diff(writers.offsets).min() >= 1
    assert writers.offsets[-1] == data.IMAGES


def test_targets_are_the_next_characters_and_codes_fit_the_vocabulary(scripts):
    data = scripts["neural_data"]
    codes = data.coded(data.ALPHABET + "\N{SNOWMAN}")
    assert codes.max() < data.VOCABULARY
    assert codes[-1] == 0
    assert len(set(data.ALPHABET)) == len(data.ALPHABET)
    shown = data.windows(np.arange(100))
    np.testing.assert_array_equal(shown[:, 0], [0, 32, 64])
    np.testing.assert_array_equal(shown[0], np.arange(32))


def test_inputs_are_what_userdp_hands_to_modules(scripts, monkeypatch, tmp_path):
    data = scripts["neural_data"]
    monkeypatch.setenv("USERDP_DATA", str(tmp_path))
    people = data.characters(np.random.default_rng(1))
    windows = Windows(data.WINDOW, (data.VOCABULARY,), "cross_entropy")
    inputs, targets = windows.tensors(Block(people.targets.astype(np.int32), people.offsets), np.arange(50))
    np.testing.assert_array_equal(inputs, people.inputs[:50])
    np.testing.assert_array_equal(targets, people.targets[:50])


def test_some_users_keep_their_first_samples(scripts):
    data = scripts["neural_data"]
    users = data.Users(np.arange(10)[:, None], np.arange(10)[:, None], np.array([0, 1, 6, 10]), "ten")
    few = data.some(users, count=2, samples=3)
    np.testing.assert_array_equal(few.offsets, [0, 1, 4])
    np.testing.assert_array_equal(few.inputs[:, 0], [0, 1, 2, 3])


@pytest.mark.parametrize("shape", [(3, 5), (3, 1, 5), (3, 4, 5)])
def test_the_loss_is_of_the_last_steps_that_the_outputs_speak_of(scripts, shape):
    models = scripts["neural_models"]
    torch = sys.modules["torch"]
    generator = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(shape, generator=generator), torch.randint(5, (3, 4), generator=generator)
    each = outputs.reshape(3, -1, 5)
    wanted = targets[:, -each.shape[1] :]
    expected = -each.log_softmax(-1).gather(-1, wanted[..., None]).mean()
    assert float(models.average_loss(outputs, targets)) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_a_trial_measures_equal_sums(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "research" / "neural.py"), "--quick", "--tools", "ours,loop"]
    command += ["--models", ",".join(TRIED)]
    settings = ["--rounds", "1", "--threads", "1", "--peers", str(tmp_path), "--json", str(report)]
    environment = os.environ | {"USERDP_DATA": str(tmp_path)}
    done = subprocess.run([*command, *settings], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(report.read_text())["rows"]
    assert [(row["model"], row["tool"]) for row in measured] == [(m, t) for m in TRIED for t in ("ours", "loop")]
    for row in measured:
        assert row["error"] or (len(row["seconds"]) == 1 and row["difference"] <= 1e-4 and row["peak_mib"] > 50)
    assert not [row for row in measured if row["error"] and (row["model"], row["tool"]) != ("gru", "ours")]


@pytest.mark.slow
def test_the_script_for_a_gpu_measures_equal_numbers_on_a_processor(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "research" / "gpu.py"), "--device", "cpu", "--quick", "--json", str(report)]
    done = subprocess.run([*command, "--models", *TRIED[:1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["left_out"] == {}
    (row,) = found["rows"]
    assert max(row[name] for name in ("gradients", "updates", "total", "actors")) <= 1e-4
    assert min(row["ours"], row["loop"]) > 0
    assert row["peak_mib"] is None

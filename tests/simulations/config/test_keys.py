"""`userdp list settings`: every key of a configuration is explained, in the words of its declaration."""

import json

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config.keys import _effects, explained, having, keys
from strategies import STRATEGIES
from userdp.errors import BadInput


def explain(*arguments):
    return CliRunner().invoke(app, ["list", "settings", *arguments])


def test_every_key_has_a_meaning_and_an_effect_on_privacy():
    every = list(keys())
    assert {key.name.partition(".")[0] for key in every} >= {
        "privacy",
        "problem",
        "data",
        "strategy",
        "engine",
        "output",
    }
    for key in every:
        assert key.meaning or key.name.endswith((".kind", ".population")), key.name
        assert key.effect


def test_every_line_about_an_effect_on_privacy_is_that_of_a_key():
    for section, words in _effects().items():
        own = {key.name.rpartition(".")[2] for key in keys() if key.effect in words.values()}
        assert set(words) - {"other"} <= own, section


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("privacy.epsilon", "Part of the promise itself"),
        ("privacy.unit", "whom the promise protects"),
        ("data.user", "one user is one value of this column"),
        ("data.features", "choice of columns must be public"),
        ("data.ranges", "Must be public knowledge, never the least and the largest cell"),
        ("data.impute", "Must be public values"),
        ("data.min_samples", "Who holds so many samples must be public"),
        ("data.max_samples", "how many samples of a user count"),
        ("problem.feature_norm", "noise is calibrated to the bound"),
        ("problem.initial_model", "rests on it being public"),
        ("strategy.clip_norm", "noise is calibrated to the bound"),
        ("strategy.learning_rate", "released with noise, or noise is calibrated to the step"),
        ("strategy.local_steps", "before they are clipped"),
        ("strategy.rounds", "calibrated again to the same epsilon and delta"),
        ("strategy.without_certificate", "no guarantee"),
    ],
)
def test_a_key_says_what_it_does_to_privacy_itself(name, words):
    assert words in explained(name)[0].effect


def test_declarations_about_made_up_users_concern_nobody():
    effects = {key.effect for key in keys() if key.name == "data.users"}
    assert any("made up" in effect for effect in effects)
    assert any("how many users there are" in effect for effect in effects)


def test_a_key_with_several_meanings_is_explained_once_for_each():
    meanings = explained("strategy.clip_norm")
    assert len({(key.meaning, key.default) for key in meanings}) == len(meanings) > 1
    having_it = [name for key in meanings for name in having(key)]
    assert sorted(having_it) == sorted(name for name, one in STRATEGIES.items() if "clip_norm" in one.model_fields)


def test_the_command_prints_all_for_people_and_for_programs():
    shown = explain("epsilon")
    assert shown.exit_code == 0
    assert "privacy.epsilon" in shown.output
    assert "number > 0" in shown.output
    (facts,) = json.loads(explain("privacy.epsilon", "--json").output)
    assert facts["default"] == "must be set"
    assert facts["effect on privacy"] == "Part of the promise itself."


def test_an_unknown_key_is_refused_with_the_nearest():
    for wrong, right in (("privacy.epsilom", "privacy.epsilon"), ("clip_nor", "clip_norm")):
        with pytest.raises(BadInput, match=f"no configuration has a key '{wrong}'; did you mean '{right}'"):
            explained(wrong)
    assert explain("privacy.epsilom").exit_code == 2

"""`userdp explain`: every key of a configuration is explained, in the words of its declaration."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.config.keys import explained, having, keys
from strategies import STRATEGIES
from userdp.errors import BadInput


def explain(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_every_key_has_a_meaning_an_effect_on_privacy_and_an_example():
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
        if "..." not in key.example:
            section, _, name = key.name.rpartition(".")
            found = tomllib.loads(key.example)
            assert name in (found[section] if section else found), key.example


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
    with pytest.raises(BadInput, match=r"no configuration has a key 'privacy.epsilom'; did you mean 'privacy.epsilon'"):
        explained("privacy.epsilom")
    assert explain("privacy.epsilom").exit_code == 2

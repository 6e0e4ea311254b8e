"""Every release and note of every strategy's run follows from released noise and public numbers alone."""

from dataclasses import replace

import numpy as np
import pytest
from any_strategy import halves
from helpers import run
from test_releases import EVERY, MORE, method_of, rows

import strategies.core.base
from strategies import STRATEGIES, model_vector
from strategies.core.recipe import notes_of
from userdp.noise import SeededNoise
from userdp.sampling import Sampler

KINDS = {name: fact.kind for strategy in STRATEGIES.values() for name, fact in notes_of(strategy).items()}
HEARS = ("non_private", "output_perturbation")
"""One divides by who answered, and promises nothing; the other ends."""


def users_of(name, method):
    return rows(method.problem) if name in MORE else halves(method.problem)


def shown(name, users, *private):
    """Released models, and facts but for those of these kinds, of every round."""
    method, released = method_of(name), []
    result = run(method, users, evaluate_fn=lambda number, arrays: released.append(model_vector(arrays)))
    facts = [
        {fact: value for fact, value in record.facts.items() if KINDS[fact] not in private} for record in result.rounds
    ]
    return released, facts


@pytest.mark.parametrize("name", EVERY)
def test_public_facts_do_not_follow_noise(name, monkeypatch):
    users, found = users_of(name, method_of(name)), []
    for sign in (1.0, -1.0):
        with monkeypatch.context() as patch:
            for output in ("gaussian", "laplace"):
                draw = getattr(SeededNoise, output)

                def turned(source, value, scale, draw=draw, sign=sign):
                    return np.asarray(value) + sign * (draw(source, value, scale) - np.asarray(value))

                patch.setattr(SeededNoise, output, turned)
            found.append(shown(name, users, "private", "noised")[1])
    for one, other in zip(*found, strict=False):  # a test that fails may end a phase earlier
        assert one == other


@pytest.mark.parametrize("name", EVERY)
def test_how_many_users_are_silent_changes_nothing_that_is_shown(name, monkeypatch):
    """No guarantee covers exact counts: divisors are the planned ones."""
    if name in HEARS:
        return
    users, gather = users_of(name, method_of(name)), strategies.core.base.gather
    models, facts = shown(name, users, "private")

    def counted(*given):
        """Other counts; and lengths, which only simulations ask for, of which half are of users who did not answer."""
        found = gather(*given)
        lengths = None if found.lengths is None else np.where(np.arange(len(found.lengths)) % 2, np.nan, found.lengths)
        return replace(found, missing=7, non_finite=5, broken_sums=2, lengths=lengths)

    monkeypatch.setattr(strategies.core.base, "gather", counted)
    again, noted = shown(name, users, "private")
    np.testing.assert_array_equal(again, models)
    assert noted == facts


def subclasses(kind):
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


@pytest.mark.parametrize("name", EVERY)
def test_no_step_looks_at_who_was_drawn(name, monkeypatch):
    """The size of a secret cohort is secret, and so is the number of its silent users."""
    method, gather = method_of(name), strategies.core.base.gather
    scheme = type(method.scheme)
    step = scheme.take

    def refused(sampler, index):
        raise AssertionError("a step asked who was drawn")

    def silent(*given):
        return replace(gather(*given), missing=7, non_finite=5, broken_sums=2)

    def blind(self, *given):
        assert name in HEARS or not (given[2].missing or given[2].non_finite or given[2].broken_sums)
        with pytest.MonkeyPatch.context() as patch:
            for kind in subclasses(Sampler):
                if "cohort" in vars(kind):
                    patch.setattr(kind, "cohort", refused)
            return step(self, *given)

    if name not in HEARS:
        monkeypatch.setattr(strategies.core.base, "gather", silent)
    monkeypatch.setattr(scheme, "take", blind)
    run(method, users_of(name, method))

"""Secret draws are made once per round by the operating system, and accounted as they were made."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from userdp.accounting import Privacy, RoundLedger
from userdp.errors import BadInput, RunFailed
from userdp.sampling import FixedSizeBatches, MixedBatches, PoissonBatches

USERS = 60
SECRET = {
    "poisson": lambda: PoissonBatches(USERS, 0.5, 9, None),
    "fixed_size": lambda: FixedSizeBatches(USERS, 30, 9, None),
    "mixed": lambda: MixedBatches(USERS, (0.5,) * 9, (0.1,) * 9, None),
}
each_sampling = pytest.mark.parametrize("sampling", SECRET)


@each_sampling
def test_a_round_asked_for_again_has_the_cohort_that_was_drawn(sampling):
    sampler = SECRET[sampling]()
    first = sampler.cohort(0).copy()
    for _ in range(5):
        np.testing.assert_array_equal(sampler.cohort(0), first)
    second = sampler.cohort(1)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(sampler.cohort(1), second)
    with pytest.raises(ValueError, match="read-only"):
        second[:] = 0


@each_sampling
def test_a_round_that_is_over_is_never_drawn_again(sampling):
    sampler = SECRET[sampling]()
    last = sampler.cohort(4)
    for index in range(4):
        with pytest.raises(
            BadInput, match=f"the cohort of round {index} was drawn by the operating system and is gone"
        ):
            sampler.cohort(index)
    np.testing.assert_array_equal(sampler.cohort(4), last)
    with pytest.raises(BadInput, match="batch 9"):
        sampler.cohort(9)


@each_sampling
def test_what_is_remembered_is_no_part_of_what_a_sampler_is(sampling):
    sampler, other = SECRET[sampling](), SECRET[sampling]()
    sampler.cohort(0)
    assert sampler == other
    assert hash(sampler) == hash(other)
    assert repr(sampler) == repr(other)
    assert not np.array_equal(sampler.cohort(0), other.cohort(0))
    assert not np.array_equal(sampler.cohort(0), replace(sampler, users=USERS).cohort(0))


@pytest.mark.sweep(1)
@each_sampling
def test_the_ledger_takes_the_cohort_that_was_drawn_and_no_other(sampling):
    sampler = SECRET[sampling]()
    ledger = sampler.ledger(sampler.calibrate(1.0, 1e-3), Privacy(1.0, 1e-3, noise="secure"))
    drawn = sampler.cohort(0).copy()
    for users in (drawn[1:], np.arange(USERS), SECRET[sampling]().cohort(0)):
        with pytest.raises(RunFailed, match="users of round 1 are not those that the sampler drew"):
            ledger.charge(users)
    assert ledger.rounds == 0
    ledger.charge(drawn)
    with pytest.raises(RunFailed, match="users of round 2 are not those"):
        ledger.charge(drawn)
    ledger.charge(sampler.cohort(1))
    assert ledger.rounds == 2


@each_sampling
def test_a_resumed_run_goes_on_with_new_cohorts_and_repeats_no_round(sampling):
    before, after = SECRET[sampling](), SECRET[sampling]()
    noise, privacy = before.calibrate(1.0, 1e-3), Privacy(1.0, 1e-3, noise="secure")
    first, second = RoundLedger(before, noise, privacy), RoundLedger(after, noise, privacy)
    asked = [before.cohort(0).copy()]
    first.charge(asked[0])
    second.restore(first.state())
    with pytest.raises(RunFailed, match="users of round 2 are not those"):
        second.charge(asked[0])
    with pytest.raises(BadInput, match="round 0 was drawn"):
        after.cohort(0)
    second.charge(after.cohort(1))
    assert second.rounds == 2


FALSE_ALARM = 1e-9


def test_secret_coins_fall_at_the_rate():
    sampler = PoissonBatches(1000, 0.3, 100, seed=None)
    counts = np.zeros(1000)
    for index in range(100):
        cohort = sampler.cohort(index)
        assert (np.diff(cohort) > 0).all()
        counts[cohort] += 1
    assert stats.binomtest(int(counts.sum()), 100_000, 0.3).pvalue > FALSE_ALARM
    assert stats.binom.sf(counts.max(), 100, 0.3) * 1000 > FALSE_ALARM  # no user is drawn more often than others
    np.testing.assert_array_equal(PoissonBatches(50, 1.0, 1, seed=None).cohort(0), np.arange(50))
    with pytest.raises(BadInput, match="batch 100"):
        sampler.cohort(100)


def test_secret_cohorts_of_a_fixed_size_are_uniform():
    sampler = FixedSizeBatches(20, 5, 4000, seed=None)
    counts = np.zeros(20)
    for index in range(4000):
        cohort = sampler.cohort(index)
        assert len(cohort) == 5
        assert (np.diff(cohort) > 0).all()
        counts[cohort] += 1
    assert stats.chisquare(counts).pvalue > FALSE_ALARM

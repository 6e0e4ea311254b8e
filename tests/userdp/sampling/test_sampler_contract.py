"""The contract of samplers: those of the house keep to it, and each way to price less than is drawn is noticed."""

from dataclasses import replace

import numpy as np
import pytest

from userdp.accounting import AnyLedger, Ledger, Privacy
from userdp.errors import ContractBroken
from userdp.sampling import (
    AmplifiedBands,
    DisjointBatches,
    FixedSizeBatches,
    PoissonBatches,
    Wanted,
)
from userdp.sampling.base import RoundLedger
from userdp.sampling.contract import DELTA, RELATIONS, check_secret_draws, least_delta
from userdp.sampling.registry import SAMPLERS, sampler_of
from userdp.testing import check_sampler


@pytest.mark.parametrize("name", SAMPLERS.places)
def test_settings_make_the_sampler_that_they_describe(name):
    size = {"participations": 3} if name == "allocation" else {"cohort": 8}
    for relation in ("replace_one", "add_or_remove") if name in ("poisson", "allocation") else (None, "replace_one"):
        sampler = sampler_of(name, Wanted(40, 12, **size, relation=relation, seed=1, secret_seed=None))
        assert (sampler.relation, sampler.rounds >= 12) == (relation or "replace_one", True)
        assert sampler.expected_batch == (10 if name == "allocation" else 8)
        assert sampler.seed == (None if sampler.secret else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS.places)
def test_a_sampler_of_the_house_keeps_to_the_contract(name):
    check_sampler(SAMPLERS[name])


@pytest.fixture
def few_seeds(monkeypatch):
    """Faults that are no matter of chance take no more."""
    monkeypatch.setattr("userdp.sampling.contract.SEEDS", 30)


@pytest.mark.parametrize("kind", [DisjointBatches, FixedSizeBatches])
def test_a_sound_sampler_passes_with_few_seeds_too(kind, few_seeds):
    check_sampler.__wrapped__(kind)


class DrawsMore(PoissonBatches):
    @property
    def expected_batch(self):
        return 1.3 * self.rate * self.users

    def cohort(self, index):
        return self._tossed(self.checked_round(index), 1.3 * self.rate)


class DrawsMoreSecretly(PoissonBatches):
    def cohort(self, index):
        return self._tossed(self.checked_round(index), self.rate if self.seed is not None else 1.3 * self.rate)


class OneUserAlways(PoissonBatches):
    @property
    def expected_batch(self):
        return 1 + (1 - 1 / self.users) * self.rate * self.users

    def cohort(self, index):
        return np.union1d(super().cohort(index), [7])


class SameCohort(PoissonBatches):
    def cohort(self, index):
        return self._tossed(0 * self.checked_round(index), self.rate)


class SizesGiveAway(PoissonBatches):
    """Cohorts of a fixed size, at the price of independent coins: who is drawn depends on who else is."""

    def cohort(self, index):
        return self.drawn_like().cohort(index)

    def drawn_like(self):
        fixed = FixedSizeBatches(self.users, round(self.rate * self.users), self.rounds, self.seed)
        object.__setattr__(fixed, "drawn", self.drawn)
        return fixed


class FreeEpochs(DisjointBatches):
    def epsilon(self, noise_multiplier, delta, rounds=None):
        return super().epsilon(noise_multiplier, delta, min(self.counted_rounds(rounds), self.rounds_per_epoch))

    def calibrate(self, epsilon, delta):
        return DisjointBatches(self.users, self.batch).calibrate(epsilon, delta)

    def ledger(self, noise_multiplier, privacy):
        return RoundLedger(self, noise_multiplier, privacy)

    def cohort(self, index):
        return DisjointBatches(self.users, self.batch, self.epochs).cohort(self.checked_round(index) // 2)


class HalfTheMove(DisjointBatches):
    @property
    def sensitivity_factor(self):
        return 1


class NoRelation(DisjointBatches):
    relation = "user"


class CheapLedger(DisjointBatches):
    def ledger(self, noise_multiplier: float, privacy: Privacy) -> AnyLedger:
        return Ledger(self.users, self.cost(2 * noise_multiplier), self.epochs, privacy)


class TooLittleNoise(PoissonBatches):
    def calibrate(self, epsilon, delta):
        return 0.9 * super().calibrate(epsilon, delta)


class PublicSeed(PoissonBatches):
    @classmethod
    def of(cls, wanted):
        return cls(wanted.users, wanted.batch / wanted.users, wanted.rounds, wanted.seed)


class LooseLedger(PoissonBatches):
    def ledger(self, noise_multiplier, privacy):
        return RoundLedger(self, noise_multiplier, privacy)


class UnevenRounds(PoissonBatches):
    def multiplier(self, index, noise_multiplier):
        return noise_multiplier * (1 + index)


class Unordered(DisjointBatches):
    def cohort(self, index):
        return super().cohort(index)[::-1]


class Forgets(PoissonBatches):
    def cohort(self, index):
        return PoissonBatches(self.users, self.rate, self.rounds, self.seed).cohort(index)


class OfSamples(DisjointBatches):
    of_samples = True


class OtherUnit(DisjointBatches):
    unit = "sample"


class FewerUsers(DisjointBatches):
    @classmethod
    def of(cls, wanted):
        return super().of(replace(wanted, users=wanted.users - 1))


class FewerRounds(DisjointBatches):
    rounds = 6


class BelowZero(DisjointBatches):
    def cohort(self, index):
        return super().cohort(index) - 1


class BeyondAll(DisjointBatches):
    def cohort(self, index):
        return super().cohort(index) + 1


class Twice(DisjointBatches):
    def cohort(self, index):
        return np.repeat(super().cohort(index), 2)


class Floats(DisjointBatches):
    def cohort(self, index):
        return super().cohort(index).astype(float)


class InColumns(DisjointBatches):
    def cohort(self, index):
        return super().cohort(index)[:, None]


class AlwaysAnother(DisjointBatches):
    asked = 0

    def cohort(self, index):
        AlwaysAnother.asked += 1
        return super().cohort((self.checked_round(index) + AlwaysAnother.asked) % self.rounds)


class BeforeTheFirst(DisjointBatches):
    def cohort(self, index):
        return super().cohort(max(index, 0))


class AfterTheLast(DisjointBatches):
    def cohort(self, index):
        return super().cohort(min(index, self.rounds - 1) if index > 0 else index)


class PromisesLess(DisjointBatches):
    def guarantee(self, *arguments, **more):
        promise = super().guarantee(*arguments, **more)
        return replace(promise, epsilon=0.9 * promise.epsilon)


class PromisesAnother(DisjointBatches):
    def guarantee(self, *arguments, **more):
        return replace(super().guarantee(*arguments, **more), relation="add_or_remove")


class CheaperWithRounds(DisjointBatches):
    def epsilon(self, noise_multiplier, delta, rounds=None):
        once = super().epsilon(noise_multiplier, delta)
        return once * (1 - 1e-3 * self.counted_rounds(rounds))

    def calibrate(self, epsilon, delta):
        return 2 * super().calibrate(epsilon, delta)

    def ledger(self, noise_multiplier, privacy):
        return RoundLedger(self, noise_multiplier, privacy)


BY_CHANCE = [
    (DrawsMore, "prices less than it draws under replace_one"),
    (DrawsMoreSecretly, "expected_batch"),
    (OneUserAlways, "prices less than it draws"),
    (SameCohort, "draws|prices less than it draws under replace_one: 7 rounds"),
    (SizesGiveAway, "prices less than it draws under replace_one: 1 rounds"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "told"), BY_CHANCE)
def test_a_sampler_whose_draws_break_the_contract_is_noticed(kind, told):
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*({told})"):
        check_sampler(kind)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (FreeEpochs, "prices less than it draws"),
        (HalfTheMove, "moves a sum of clipped vectors by 2 clips"),
        (NoRelation, "state one of replace_one, add_or_remove"),
        (CheapLedger, "is charged"),
        (TooLittleNoise, "has a price of epsilon"),
        (PublicSeed, "take `Wanted`.secret_seed"),
        (LooseLedger, "secret cohorts of a public seed"),
        (UnevenRounds, "equal noise"),
        (Unordered, "rising indices"),
        (Forgets, "draws a round anew after a stop"),
        (OfSamples, "protects samples"),
        (OtherUnit, "protects samples"),
        (FewerUsers, "draws from 39 users, and there are 40"),
        (FewerRounds, "has 6 rounds for 7"),
        (BelowZero, "rising indices"),
        (BeyondAll, "rising indices"),
        (Twice, "rising indices"),
        (Floats, "rising indices"),
        (InColumns, "rising indices"),
        (AlwaysAnother, "draws one round twice"),
        (BeforeTheFirst, "draws round -1 of"),
        (AfterTheLast, "draws round 10 of 10"),
        (PromisesLess, "promises another relation or epsilon"),
        (PromisesAnother, "promises another relation or epsilon"),
        (CheaperWithRounds, "let `epsilon` grow with the rounds"),
    ],
)
def test_a_sampler_that_breaks_the_contract_is_noticed(kind, told, few_seeds):
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*({told})"):
        check_sampler(kind)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_takes_less_than_is_priced_and_not_much_less(relation):
    sampler = replace(PoissonBatches(40, 0.2, 1, 0), relation=relation)
    taken = np.random.default_rng(1).random((2000, 1, 40)) < 0.2
    for epsilon in (0.5, 4.0):
        noise = sampler.calibrate(epsilon, DELTA)
        assert 0.6 * DELTA < least_delta(sampler, taken, noise, epsilon) < 0.98 * DELTA
        assert least_delta(sampler, taken, 0.8 * noise, epsilon) > DELTA


class OpenSecret(PoissonBatches):
    """Draws by a seed that stands in its code, where cohorts are to be secret."""

    def cohort(self, index):
        return PoissonBatches(self.users, self.rate, self.rounds, 5).cohort(index)


def test_secret_cohorts_that_every_run_draws_alike_are_noticed():
    wanted = Wanted(1000, 4, cohort=100)
    with pytest.raises(ContractBroken, match="draws the same secret cohorts in two runs"):
        check_secret_draws(OpenSecret.of(wanted), wanted)


@pytest.mark.parametrize("name", ["file", "package"])
def test_a_sampler_from_outside_that_prices_too_little_never_runs(name, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(f"from {__name__} import SameCohort\n\n\nclass Mine(SameCohort):\n    pass\n", encoding="utf-8")
    monkeypatch.setitem(SAMPLERS.installed, "mine", f"{__name__}:SameCohort")
    with pytest.raises(ContractBroken, match=r"(Mine|SameCohort) prices less than it draws"):
        sampler_of("mine" if name == "package" else f"{file}:Mine", Wanted(1000, 4, cohort=100))


def test_a_sampler_that_settings_cannot_make_is_refused_at_its_place():
    with pytest.raises(Exception, match="names AmplifiedBands, which is no class below NamedSampler"):
        sampler_of(f"{AmplifiedBands.__module__}:AmplifiedBands", Wanted(100, 4))

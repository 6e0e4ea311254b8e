"""The contract of samplers: those of the house keep to it, and each way to price less than is drawn is noticed."""

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
from userdp.sampling.contract import check_secret_draws
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (DrawsMore, "prices less than it draws under replace_one"),
        (DrawsMoreSecretly, "expected_batch"),
        (OneUserAlways, "prices less than it draws"),
        (SameCohort, "draws|prices less than it draws under replace_one: 7 rounds"),
        (SizesGiveAway, "prices less than it draws under replace_one: 1 rounds"),
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
    ],
)
def test_a_sampler_that_breaks_the_contract_is_noticed(kind, told):
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*({told})"):
        check_sampler(kind)


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

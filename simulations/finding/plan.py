"""The releases of a search for facts, and what they cost together: public, fixed before data are read."""

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from simulations.finding import grids
from simulations.finding.settings import FindConfig
from userdp.accounting.guarantee import Guarantee
from userdp.accounting.mixed import MIXED_ACCOUNTANT, MixedReleases
from userdp.errors import BadInput
from userdp.mechanisms.set_union import SetUnion
from userdp.mechanisms.user_quantile import UserQuantile
from userdp.streams import GIVEN_SEED

if TYPE_CHECKING:
    from simulations.account.accounts import Wanted

_FAILURE = 0.01  # Probability with which noise may carry a quantile further than its share allows for.
_MOST_SHARES = {"numbers": 0.25, "dates": 0.25, "max_samples": 0.5}  # Larger ones would be a guess.
_UNION_SHARE = 0.5  # Share of delta for items that one user alone holds.
_ADVERSARY = "everyone who sees the facts, and knows all other users; the holder of the table is trusted"


@dataclass(frozen=True)
class FindPlan:
    """The mechanisms that find facts, within one budget.

    *Formal guarantees.* All facts together are as private as `userdp.accounting.mixed.MixedReleases` says, under the
    relation of ``config.privacy``. *Why.* Each end of a range, and the most samples, are a choice of `UserQuantile`;
    the levels of a column are one `SetUnion`. Their settings are functions of ``config``. Everything else in the facts
    follows from their results and from ``config``.
    """

    config: FindConfig

    def __post_init__(self) -> None:
        for facts, share in self.shares.items():
            if share > _MOST_SHARES[facts]:
                asked, users = self.config.privacy, self.config.data.all_users
                raise BadInput(
                    f"privacy.epsilon = {asked.epsilon:g} is too little to find {facts}: with {len(self._choices)} "
                    f"choices and {len(self.config.find.words)} lists of levels among {users} users, noise would hide "
                    f"a share of {share:.2f} on each side; raise epsilon, or find facts of fewer columns"
                )

    @cached_property
    def releases(self) -> MixedReleases:
        """All releases, with the noise that the budget needs."""
        asked, find = self.config.privacy, self.config.find
        lists = (find.weights.levels,) * len(find.words)
        failure = _UNION_SHARE * asked.delta if lists else 0.0
        return MixedReleases.calibrated(self._choices, lists, failure, asked.epsilon, asked.delta)

    @property
    def _choices(self) -> tuple[float, ...]:
        find = self.config.find
        ends = 2 * (len(find.numbers) + len(find.dates))
        return (find.weights.ranges,) * ends + (find.weights.max_samples,) * find.max_samples

    @cached_property
    def shares(self) -> dict[str, float]:
        """Facts asked for -> the share beyond each end: that of the file, or the least that noise does not hide.

        Shares of numbers and dates are those of votes, and the share of max_samples is that of users.
        """
        find = self.config.find
        ends, users = (find.share, find.weights.ranges), self.config.data.all_users
        asked = {
            "numbers": (bool(find.numbers), *ends, grids.numbers()),
            "dates": (bool(find.dates), *ends, grids.years()),
            "max_samples": (find.max_samples, find.surplus, find.weights.max_samples, grids.counts()),
        }
        return {
            facts: max(wanted, self._quantile(wanted, weight).reach(grid, _FAILURE) / users)
            for facts, (whether, wanted, weight, grid) in asked.items()
            if whether
        }

    # Mechanisms -------------------------------------------------------------------------------------------------------

    def quantile(self, facts: str) -> UserQuantile:
        """Return the mechanism of an end of ``facts``, a key of `shares`."""
        weights = self.config.find.weights
        return self._quantile(self.shares[facts], weights.max_samples if facts == "max_samples" else weights.ranges)

    def _quantile(self, share: float, weight: float) -> UserQuantile:
        return UserQuantile(share, self.releases.choice_epsilon(weight), self.config.privacy.relation)

    @property
    def levels(self) -> SetUnion:
        """The mechanism of the levels of one column."""
        find = self.config.find
        each = self.releases.failure_delta / len(find.words)
        multiplier = self.releases.noise_multiplier(find.weights.levels)
        return SetUnion(multiplier, each, find.most_levels, self.config.privacy.relation)

    @property
    def numbers(self) -> dict[str, float]:
        """The public numbers of the search, for people."""
        shares: dict[str, float] = {f"share_beyond_{facts}": share for facts, share in self.shares.items()}
        needed = {"users_for_a_level": self.levels.users_needed(1)} if self.config.find.words else {}
        return shares | needed

    # Promise ----------------------------------------------------------------------------------------------------------

    @property
    def entry(self) -> "Wanted":
        """Return what an account is asked for, under a token of its own: a search that is made again is another one."""
        from simulations.account.accounts import Wanted  # noqa: PLC0415 -- needs SQLAlchemy

        what = f"find facts: {', '.join(self.config.columns)}"
        return Wanted(what, (self.guarantee,), secrets.token_hex(16), cost=self.releases.cost)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all facts together."""
        asked = self.config.privacy
        assumed = ["which users there are is public, and so are the columns' names and kinds"]
        if asked.relation == "add_or_remove":
            assumed = ["the columns' names and kinds are public", "no more users are in the table than declared"]
        assumed.append("a person is one value of the user column")
        if asked.noise == "seeded":
            assumed.append(GIVEN_SEED)
        spent = self.releases.epsilon(asked.delta)
        return Guarantee(
            "user", asked.relation, spent, asked.delta, MIXED_ACCOUNTANT, _ADVERSARY, tuple(assumed), holds=True
        )

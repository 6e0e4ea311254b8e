"""What a guarantee says of itself."""

from dataclasses import replace

import pytest

from simulations.audit.finding import claim_of
from userdp.accounting.guarantee import ONE_GAUSSIAN, Guarantee
from userdp.audit.trade_off import Approximate, Gaussian

GUARANTEE = Guarantee(
    unit="user",
    relation="replace_one",
    epsilon=2.0,
    delta=1e-5,
    accountant=f"{ONE_GAUSSIAN}, composed over participations",
    adversary="against <everybody> else",
    assumptions=("n is public", "nodes clip as told"),
    holds=True,
)


@pytest.mark.parametrize(
    ("accountant", "gaussian"),
    [
        (f"{ONE_GAUSSIAN}, one for all rounds", True),
        (f"{ONE_GAUSSIAN}, composed over rounds; group privacy for 3 samples", True),
        (f"{ONE_GAUSSIAN}, composed over rounds; a last comparison of epsilon = 1 is added", False),
        ("privacy loss distribution of the Gaussian mechanism", False),
    ],
)
def test_a_claim_is_that_of_one_gaussian_where_its_accountant_says_so_and_nothing_is_added(accountant, gaussian):
    guarantee = replace(GUARANTEE, accountant=accountant)
    assert guarantee.is_one_gaussian == gaussian
    assert isinstance(claim_of(guarantee), Gaussian if gaussian else Approximate)

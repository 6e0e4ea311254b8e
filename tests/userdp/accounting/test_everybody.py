"""The promise for everybody, of whom some train and others are held out."""

import pytest

from userdp.accounting import Guarantee, Price, Privacy, Total
from userdp.accounting.composition import rho_of
from userdp.accounting.costs import calibrate_noise
from userdp.accounting.guarantee import ONE_GAUSSIAN, ZERO_CONCENTRATED, for_everybody
from userdp.errors import BadInput


def promise(accountant, epsilon, delta):
    return Guarantee("user", "replace_one", epsilon, delta, accountant, "anybody", (), holds=True)


PARTS = [
    (promise(ONE_GAUSSIAN, 4.0, 1e-4),),
    (promise(ONE_GAUSSIAN, 2.8, 7e-5), promise(ONE_GAUSSIAN, 1.2, 3e-5)),
    (promise(ONE_GAUSSIAN, 3.8, 1e-4), promise("Laplace mechanism", 0.2, 0.0)),
    (promise("Laplace mechanism", 3.8, 0.0), promise(ONE_GAUSSIAN, 0.2, 1e-4)),
    (promise("pure composition of peeling", 4.0, 0.0),),
    (promise(ZERO_CONCENTRATED, 4.0, 1e-4),),
    (promise("something else", 3.0, 1e-6),),
]


@pytest.mark.parametrize("parts", PARTS)
def test_a_promise_for_everybody_is_that_of_held_out_users_too(parts):
    budget = Privacy(4.0, 1e-4)
    whole = for_everybody(parts, budget)
    assert whole.epsilon >= max(4.0, sum(one.epsilon for one in parts))
    assert whole.delta >= max(1e-4, sum(one.delta for one in parts))
    assert whole.is_one_gaussian == all(one.is_one_gaussian for one in parts)
    rho, multiplier = rho_of(whole), calibrate_noise(4.0, 1e-4, 1)
    assert rho is None or rho >= 1 / (2 * multiplier**2)
    with pytest.raises(BadInput, match="exceeds what is left"):  # held-out users meet Gaussian noise
        Total(900.0, 0.0, others=1.0).charged(Price(), [whole])

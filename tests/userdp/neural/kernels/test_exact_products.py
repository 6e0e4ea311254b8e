"""Products and sums that no order changes, and the operations that are refused."""

import pytest
import torch

from userdp.neural.kernels.exact import Exact, NoFixedOrder


@pytest.mark.parametrize("terms", [1, 2, 37, 1000, 5000])
@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_terms_changes_a_product_or_a_sum(terms, seed):
    random = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-30, 15, (1, terms), generator=random)
    a, b = torch.randn(6, terms, generator=random) * scale, torch.randn(terms, 3, generator=random)
    order = torch.randperm(terms, generator=random)
    with Exact():
        found, again = a @ b, a[:, order] @ b[order]
        total, turned = a.sum(1), a[:, order].sum(1)
        alone = torch.cat([row[None] @ b for row in a])
    assert found.equal(again)
    assert found.equal(alone)
    assert total.equal(turned)
    twice, opposed = torch.cat([order, terms + order]), torch.cat([b, -b])
    with Exact():
        nothing = torch.cat([a, a], 1)[:, twice] @ opposed[twice]
    assert not nothing.any()  # whatever is rounded does not cancel
    exact, largest = a.double() @ b.double(), a.abs().amax(1, keepdim=True) * b.abs().amax(0)
    assert ((found - exact).abs() <= terms * 2.0**-18 * largest).all()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_itself_alone(wrong):
    a, b = torch.randn(3, 5), torch.randn(5, 2)
    with Exact():
        fine = a @ b
        a[1, 2] = wrong
        found = a @ b
    assert found[[0, 2]].equal(fine[[0, 2]])
    assert not found[1].isfinite().any()


@pytest.mark.parametrize(
    "compute", [torch.sin, torch.erf, lambda x: x.cumsum(0), lambda x: x.double() @ x.double().mT, torch.linalg.inv]
)
def test_an_operation_without_a_known_order_is_refused(compute):
    with Exact(), pytest.raises(NoFixedOrder):
        compute(torch.eye(3))


@pytest.mark.parametrize("count", [1, 3, 31, 64, 100])
def test_a_function_of_one_number_has_the_same_bits_at_any_place(count):
    x = torch.randn(count) * 3
    for function in (torch.exp, torch.tanh, torch.sigmoid, torch.log1p, torch.expm1):
        with Exact():
            together = function(x.abs())
            alone = [function(x[place : place + 1].abs()) for place in range(count)]
        assert together.equal(torch.cat(alone))

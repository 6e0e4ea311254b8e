"""Products within a fixed order: each row's last bits follow from that row."""

import numpy as np
import pytest

from userdp.arrays.fixed_order import fixed_order, grams, inner, product


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 33, 300, 9000])
def test_products_have_the_same_bits_in_any_company_and_are_products(width):
    rng = np.random.default_rng(width)
    rows, others = rng.normal(size=(2, 11, width))
    matrix, stacks = rng.normal(size=(width, 3)), rng.normal(size=(5, 4, min(width, 40)))
    with fixed_order(wanted=True):
        made = product(rows, matrix[:, 0]), product(rows, matrix), inner(rows, others), grams(stacks)
        for row in range(11):
            part = slice(row, row + 1)
            for first, second in ((matrix[:, 0], made[0]), (matrix, made[1])):
                np.testing.assert_array_equal(product(rows[part], first)[0], second[row])
            assert inner(rows[part], others[part])[0] == made[2][row]
        np.testing.assert_array_equal(inner(np.asfortranarray(rows), np.asfortranarray(others)), made[2])
        for one in range(5):
            np.testing.assert_array_equal(grams(stacks[one : one + 1])[0], made[3][one])
    plain = rows @ matrix[:, 0], rows @ matrix, np.vecdot(rows, others), stacks @ stacks.transpose(0, 2, 1)
    for ours, theirs in zip(made, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)

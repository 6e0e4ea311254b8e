"""Strategies that follow a robust mean of users' gradients, tested for agreement, every round."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.robust.passing import KERNELS, TESTS, AgreementOptions, guaranteed_score, needed_ratio, needed_score
    from strategies.robust.row_rounds import Agreement, AnyTest
    from strategies.robust.tested_rounds import (
        SHARES,
        TEST_MEANINGS,
        TEST_NOTES,
        TESTED_ABOUT,
        UNDECLARED,
        TestedOptions,
    )

__all__ = [
    "KERNELS",
    "SHARES",
    "TESTED_ABOUT",
    "TESTS",
    "TEST_MEANINGS",
    "TEST_NOTES",
    "UNDECLARED",
    "Agreement",
    "AgreementOptions",
    "AnyTest",
    "TestedOptions",
    "guaranteed_score",
    "needed_ratio",
    "needed_score",
]

__getattr__, __dir__ = lazily(__name__)

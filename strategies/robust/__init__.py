"""Strategies that follow a robust mean of users' gradients, tested for agreement, every round."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from strategies.robust.passing import KERNELS, TESTS, AgreementOptions, guaranteed_score, needed_ratio, needed_score
    from strategies.robust.row_rounds import AnyTest
    from strategies.robust.tested_rounds import TEST_MEANINGS, TEST_NOTES

__all__ = [
    "KERNELS",
    "TESTS",
    "TEST_MEANINGS",
    "TEST_NOTES",
    "AgreementOptions",
    "AnyTest",
    "guaranteed_score",
    "needed_ratio",
    "needed_score",
]

__getattr__, __dir__ = lazily(__name__)

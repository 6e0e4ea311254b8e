"""What masks are for: plain sums of clipped rows, each asked about one model."""

from dataclasses import replace

import numpy as np
import pytest

from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation

X = np.array([0.5, -1.0])


def asked(**changes):
    masked = MaskedSum(IntegerGrid.finest(5.0, 40, 0.5), 5.0)
    return replace(Computation(reduce="sum", clip_norm=0.5, masked=masked), **changes)


def test_another_model_computation_or_round_is_another_question():
    others = [asked(clip_norm=0.25), asked(name="sample_sum"), asked(separate=True), asked(parameters={"steps": 2.0})]
    others.append(asked(masked=replace(asked().masked, round=1)))
    questions = [asked().question(X), asked().question(np.nextafter(X, 1)), *(other.question(X) for other in others)]
    assert len(set(questions)) == len(questions)
    assert asked().question(X.copy()) == questions[0]


@pytest.mark.parametrize(
    "changes", [{"clip_norm": None}, {"reduce": "rows"}, {"lengths": True}, {"centre": X}, {"l1_norm": 1.0}], ids=str
)
def test_nothing_but_plain_sums_of_clipped_rows_is_masked(changes):
    with pytest.raises(BadInput, match="cannot be masked"):
        asked(**changes)

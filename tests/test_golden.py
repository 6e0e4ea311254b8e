"""No change of code moves a number unnoticed: plans, guarantees and models are those of golden/values.json."""

import gc

import pytest
from golden.record import COMMAND, check, load_cases, read
from helpers import forgive_ray

CASES = load_cases()
RECORDED = read()


def parameter(case):
    return pytest.param(case, id=case["name"], marks=[pytest.mark.slow, forgive_ray] if case.get("slow") else [])


@pytest.mark.sweep(20)
@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_the_numbers_are_those_recorded(case):
    found = check(case, RECORDED)
    if case.get("slow"):
        gc.collect()  # here, where the warnings about Ray's handles are expected
    if found:
        told = "\n".join(map(str, found[:10]))
        more = f"\n... and {len(found) - 10} more" if len(found) > 10 else ""
        pytest.fail(f"{told}{more}\nIf that is meant: {COMMAND}, and say why in the commit", pytrace=False)


def test_no_value_is_recorded_for_a_case_that_is_gone():
    assert set(RECORDED["cases"]) == {case["name"] for case in CASES}

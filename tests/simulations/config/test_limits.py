"""Every limit of every section, at its boundary: just inside is accepted, just outside is refused.

The limits stand here a second time, by the names of the settings, so that one that moves or goes is noticed.
"""

import importlib
import math
import re
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import PlainValidator, TypeAdapter, ValidationError

import simulations
import strategies
import userdp
from simulations.config.run_config import PrivacySection, RunConfig
from userdp.settings import Section

LIMITS = {
    "> 0": "epsilon clip_norm clip clip_low clip_high clip_rate count_noise count_bound bound radius threshold "
    "feature_norm feature_bound feature_deviation feature_shape parameter_norm deviation samples_tail adaptivity "
    "tolerance weight learning_rate local_rate alpha timeout roster_timeout Weights.ranges Weights.levels "
    "Weights.max_samples",
    ">= 0": "heterogeneity noise_deviation spread skew ridge proximal local_weight_decay least_noise lost_nodes memory "
    "test_users nodes",
    ">= 1": "users all_users samples samples_max samples_per_user min_samples max_samples dimension outputs rank "
    "window buckets Categorical.levels sparsity rounds epochs steps cohort participations local_steps local_batch "
    "local_epochs most_levels finding_rounds max_rows evaluate_every users_per_node workers repeats "
    "TorchSettings.memory",
    ">= 0, < 1": "delta colluding max_missing test_fraction outliers momentum second_moment local_momentum ema_decay "
    "coefficients",
    "> 0, < 1": "failure count_share",
    "> 0, < 0.25": "share",
    "> 0, < 0.5": "surplus false_rows",
    ">= 0, <= 1": "quantile shrink gpus_per_actor",
    ">= 1, <= 5": "radius_factor",
    ">= 1, <= 32": "LocalizedWeighting.phases",
    ">= 1, <= 64": "LocalizedClipping.phases",
    f">= 0, < {2**63}": "seed",
    f">= 0, < {2**62}": "public_seed",
}
"""Limits -> names of settings, with the class where the same name has other limits elsewhere."""
LIMIT_OF = {name: limits for limits, names in LIMITS.items() for name in names.split()}
UNLIMITED = {"parameter_sparsity", "outlier_shift", "Derivation.threshold", "otherwise", "trim", "width"}
"""Numbers without a limit of their own: of made-up users, of one derived number, or limited together with others."""
INFINITE = {"LossSettings", "StrategyOptions"}
"""Sections whose numbers may be infinite, for no limit."""
LENGTHS = {"ask": (1, None), "at": (1, None), "bins": (2, None), "Correlation.of": (2, None), "targets": (1, None)}
LENGTHS |= {"strategy": (1, None), "TargetRange.target_range": (2, 2), "Survival.at": (2, None)}
"""Lists -> their fewest and most elements."""


def sections(above=Section):
    for one in above.__subclasses__():
        yield one
        yield from sections(one)


def every():
    """Yield (class, name, field) of all sections that the packages define, each field once."""
    for package in (userdp, strategies, simulations):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            if re.search(r"\bField\(", path.read_text(encoding="utf-8")) and "baselines" not in path.parts:
                importlib.import_module(".".join([package.__name__, *path.relative_to(root).with_suffix("").parts]))
    seen = set()
    for one in sections():
        if one.__module__.split(".")[0] in ("userdp", "strategies", "simulations"):
            for name, field in one.model_fields.items():
                key = name, repr(field.annotation), repr(field.metadata)
                if key not in seen and "baselines" not in one.__module__:
                    seen.add(key)
                    yield one, name, field


FIELDS = list(every())


def number_of(annotation):
    """Return int or float if a setting is a number, perhaps None; else None."""
    parts = [part for part in (get_args(annotation) or [annotation]) if part is not type(None)]
    plain = annotation in (int, float) or isinstance(annotation, types.UnionType)
    return parts[0] if plain and len(parts) == 1 and parts[0] in (int, float) else None


def listing(field):
    """Return the annotation of a setting that is a list, perhaps None; else None."""
    parts = [part for part in (field.annotation, *get_args(field.annotation)) if get_origin(part) is list]
    return parts[0] if parts and get_origin(field.annotation) in (list, types.UnionType) else None


def listed(one, name, names):
    """Return the key of a setting in ``names``: with its class, or one above it, if that is there."""
    return next((f"{above.__name__}.{name}" for above in one.__mro__ if f"{above.__name__}.{name}" in names), name)


def accepts(one, field, value):
    try:
        TypeAdapter(Annotated[field.annotation, field], config=one.model_config).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def boundary(kind, limits):
    """Yield (value, whether it is accepted) around limits such as ">= 0, < 1", and where there are none far out."""
    far = {">": math.inf, "<": -math.inf}
    for sign, text in (part.split() for part in limits.split(", ")):
        edge = kind(text)
        out, into = (
            (math.nextafter(edge, -far[sign[0]]), math.nextafter(edge, far[sign[0]]))
            if kind is float
            else (edge - 1, edge + 1)
            if sign[0] == ">"
            else (edge + 1, edge - 1)
        )
        yield from ((out, False), (edge, sign.endswith("=")), (into, True))
    if "<" not in limits:
        yield (1e300, True) if kind is float else (2**62, True)
    if kind is float:
        yield from ((math.nan, False), (-math.inf, False))


@pytest.mark.parametrize(
    ("one", "name", "field"),
    [case for case in FIELDS if number_of(case[2].annotation) and listed(*case[:2], UNLIMITED) not in UNLIMITED],
    ids=lambda part: getattr(part, "__name__", part if isinstance(part, str) else ""),
)
def test_every_number_has_its_limit(one, name, field):
    kind, limits = number_of(field.annotation), LIMIT_OF[listed(one, name, LIMIT_OF)]
    tried = dict(boundary(kind, limits))
    if kind is float:
        tried[math.inf] = "<" not in limits and not INFINITE.isdisjoint(above.__name__ for above in one.__mro__)
    assert {value: accepts(one, field, value) for value in tried} == tried


def test_every_limit_is_that_of_a_setting():
    found = {listed(one, name, LIMIT_OF) for one, name, field in FIELDS if number_of(field.annotation)}
    assert set(LIMIT_OF) <= found


def plain_list(field):
    """Return whether a setting is a list of any elements; `OneOrTwo` counts them itself."""
    return get_origin(listing(field)) is list and not any(isinstance(one, PlainValidator) for one in field.metadata)


@pytest.mark.parametrize(("one", "name", "field"), [case for case in FIELDS if plain_list(case[2])])
def test_every_list_has_its_lengths(one, name, field):
    least, most = LENGTHS.get(listed(one, name, LENGTHS), (0, None))
    kept = TypeAdapter(Annotated[list[Any], *field.metadata, None])
    for length in range(5):
        fits = least <= length <= (most or length)
        with nullcontext() if fits else pytest.raises(ValidationError):
            kept.validate_python([0.0] * length)


def test_names_of_runs_and_accounts_lead_nowhere_else():
    names = {
        name: field for one, name, field in FIELDS if name in ("name", "account") and one in (RunConfig, PrivacySection)
    }
    for good in ("a", "Z9", "a.b_c-d", "a" * 100):
        assert all(accepts(RunConfig, field, good) for field in names.values())
    for bad in ("", ".", "..", "-a", "_a", "a/b", "a b", "a\n", "\u00e4", "a" * 101, "a\\b", "a:b", "a;b"):
        assert not any(accepts(RunConfig, field, bad) for field in names.values()), bad

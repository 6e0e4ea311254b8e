"""The contract of sources of data: the users are those that the settings declare, the same every time."""

import pickle
from typing import Any

import numpy as np

from userdp.data.block import Block
from userdp.data.federation import Federation
from userdp.data.source import DataSettings
from userdp.errors import insist

_ROUNDING = 1e-6
_MOST = 200  # users whose samples are compared


def check_source(kind: type[DataSettings], /, **settings: Any) -> None:
    """Check a source of data, with settings of a small data set.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and the remedy.
        BadInput: the settings do not suit the class, or the data cannot be read.
    """
    source = kind.model_validate({"kind": kind.__name__, **settings})
    datasets = source.load(0)
    train = datasets.users
    check_numbers(source, train, datasets.test)
    for part in (train, datasets.test):
        if part is not None:
            check_samples(source, part)
    again = source.load(0).users
    everybody = np.arange(min(train.users, _MOST))
    same = "gives other users when it is read again: let them, and their order, follow from the settings and the seed"
    insist(source, again.users == train.users and _equal(again.block(everybody), train.block(everybody)), same)
    copy = pickle.loads(pickle.dumps(train))
    insist(source, _equal(copy.block(everybody), train.block(everybody)), "has a federation that pickle changes")
    labels = source.labels(0)[: train.users]
    insist(
        source,
        len(set(labels.tolist())) == train.users,
        "labels two users alike, or not all of them: let `labels` name each once",
    )


def check_numbers(source: DataSettings, train: Federation, test: Federation | None) -> None:
    """Check declared numbers: a plan, which reads no data, makes the promise from them."""
    numbers = {
        "users": (source.declared_users, train.users),
        "samples": (source.declared_samples, train.samples),
        "held-out users": (source.declared_held_out, 0 if test is None else test.users),
    }
    for name, (declared, loaded) in numbers.items():
        insist(source, declared in (None, loaded), f"declares {declared} {name} and loads {loaded}: correct it")
    insist(
        source,
        (test is None) == (source.holds_out is None),
        "does not say whether it holds users out: let `holds_out` name the declaration, or return None as test users",
    )


def check_samples(source: DataSettings, people: Federation) -> None:
    """Check that samples keep to the declared limits and shape, and are the same whoever is asked with a user."""
    shape, (fewest, most) = source.sample_shape, source.sample_limits
    asked = np.unique(np.linspace(0, people.users - 1, min(people.users, _MOST)).astype(np.int64))
    block = people.block(asked)
    sizes = block.sizes
    within = bool((sizes >= fewest).all() and (most is None or (sizes <= most).all()))
    insist(
        source,
        within,
        f"has users of {sizes.min()} to {sizes.max()} samples: {fewest} to {most} are declared",
    )
    for place in {0, len(asked) - 1}:
        alone = people.block(asked[place : place + 1])
        insist(source, _equal(alone, block.part(place, place + 1)), "has samples that change with who else is asked")
    columns = block.features.shape[1]
    insist(source, columns == shape.columns, f"has {columns} feature columns, and declares {shape.columns}")
    insist(source, (block.targets is not None) == shape.has_target, "has targets or none, unlike its shape")
    if shape.sparsity is None and shape.codes_from is None:
        features = np.abs(block.dense_features[block.usable] if block.usable is not None else block.dense_features)
        insist(source, bool(np.isfinite(features).all()), "has features that are not finite: use `Block.usable`")
        _held(source, "bound", float(features.max(initial=0.0)), shape.bound)
        _held(source, "feature_norm", float(features.sum(axis=1).max(initial=0.0)), shape.feature_norm)
    if block.targets is not None and shape.target_range is not None:
        targets = block.targets if block.usable is None else block.targets[block.usable]
        low, high = shape.target_range
        inside = bool(((targets >= low - _ROUNDING) & (targets <= high + _ROUNDING)).all())
        insist(source, inside, f"has targets outside of target_range = {list(shape.target_range)}: clip them")


def _held(source: DataSettings, name: str, most: float, declared: float | None) -> None:
    """Check a bound on features: losses prove their certificates from it."""
    within = declared is None or most <= declared * (1 + _ROUNDING)
    insist(source, within, f"declares {name} = {declared} of features, and {most:.6g} occurs: clip them")


def _equal(one: Block, other: Block) -> bool:
    pairs = [(one.offsets, other.offsets), (one.dense_features, other.dense_features)]
    pairs += [] if one.targets is None or other.targets is None else [(one.targets, other.targets)]
    return (one.targets is None) == (other.targets is None) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs
    )

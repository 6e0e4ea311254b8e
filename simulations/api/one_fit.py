"""The rule for who may fit an estimator of `userdp.sklearn`: you, or a `Pipeline` whose other steps learn nothing.

An estimator cannot see who calls it, so these checks read the calling functions' frames when `fit` begins.

* Searches, cross-validation and ensembles fit an estimator many times. Every fit spends its whole budget, and scores of
  private rows choose among them, which no guarantee covers. They are refused, like all other callers of scikit-learn
  and all other estimators that call `fit`.
* A step before the estimator that learns from private rows, such as their means, puts it into the model without noise.

No frame shows what happened before: rows that a scaler was fitted to and loops of your own are for you to avoid.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures

from userdp.errors import BadInput

_WITHIN_A_FIT = ("sklearn.base", "sklearn.pipeline", "sklearn.utils")
"""Modules of scikit-learn that call `fit` once: of a pipeline, and of its own checks of estimators."""


def check_callers(estimator: BaseEstimator) -> None:
    """Refuse a fit of ``estimator`` by a caller that fits several times, or after steps that learn from data.

    Raises:
        BadInput: a function above on the stack is of scikit-learn, or a method of another estimator than a `Pipeline`;
            or a step of the pipeline learns from the rows.
    """
    frame, caller = inspect.currentframe(), None
    while frame is not None:
        module, owner = str(frame.f_globals.get("__name__", "")), frame.f_locals.get("self")
        if isinstance(owner, Pipeline):
            check_steps(owner)
        elif isinstance(owner, BaseEstimator) and owner is not estimator:
            caller = type(owner).__name__
        elif module.startswith("sklearn.") and not module.startswith(_WITHIN_A_FIT):
            caller = frame.f_code.co_name  # the outermost is what the user called
        frame = frame.f_back
    if caller == TransformedTargetRegressor.__name__:
        raise BadInput(
            f"{caller} fits a transformer to everybody's targets, and no noise hides what it learns: give y "
            "transformed by a public function, with its target_range, and invert predictions yourself"
        )
    if caller is not None:
        raise BadInput(
            f"{caller} calls fit of {type(estimator).__name__}: searches, cross-validation and ensembles fit again for "
            "every candidate and fold, each fit spends epsilon and delta again, and no guarantee covers choosing by "
            "scores of private rows. Choose settings beforehand or on public data, call fit once, and evaluate within "
            "the budget (docs/evaluate.md)"
        )


def check_steps(pipeline: Pipeline) -> None:
    """Refuse a pipeline with a step, before its last one, that learns from the rows it is fitted to; `BadInput`."""
    for name, step in pipeline.steps[:-1]:
        for learner in _learners(step):
            raise BadInput(
                f"step {name!r} of the pipeline has {learner}, which learns from private rows, and no noise hides what "
                "it learns: leave it out and declare bounds, by which the estimator scales, or schema, by which it "
                "encodes levels and, with 'impute', fills missing cells; or fit it on public rows and wrap it in "
                "sklearn.frozen.FrozenEstimator"
            )


def _learners(step: Any) -> Iterator[str]:
    """Yield a description of each part of a transformer that may learn from rows."""
    if step is None or isinstance(step, str | FrozenEstimator):  # 'passthrough' or 'drop'
        return
    if isinstance(step, Pipeline | FeatureUnion):
        for _, part in step.steps if isinstance(step, Pipeline) else step.transformer_list:
            yield from _learners(part)
    elif isinstance(step, ColumnTransformer):
        for _, part, columns in [*step.transformers, ("remainder", step.remainder, ())]:
            if callable(columns) and not isinstance(columns, make_column_selector):
                yield "a ColumnTransformer with a function that chooses columns"
            yield from _learners(part)
    elif type(step) in (OneHotEncoder, OrdinalEncoder):
        if isinstance(step.categories, str):
            yield f"{type(step).__name__} with categories='auto' (list the categories)"
        elif step.min_frequency is not None or step.max_categories is not None:
            yield f"{type(step).__name__} with min_frequency or max_categories"
        elif step.handle_unknown == "error":
            yield f"{type(step).__name__} with handle_unknown='error' (one person's cell would stop the fit)"
    elif type(step) is SimpleImputer and step.strategy == "constant":
        yield "SimpleImputer with strategy='constant' (everybody's cells decide which columns stay)"
    elif type(step) is not PolynomialFeatures and _needs_fit(step):
        yield type(step).__name__


def _needs_fit(step: Any) -> bool:
    tags = getattr(step, "__sklearn_tags__", None)
    return tags is None or bool(tags().requires_fit)

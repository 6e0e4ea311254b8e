"""The estimators of `userdp.sklearn`: `userdp.train` with the interface of scikit-learn."""

import secrets
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from simulations.api.one_fit import check_callers
from simulations.api.training import train
from simulations.api.unknown_levels import OnUnknown
from userdp.accounting import Guarantee
from userdp.data.tables.cells import cell_text
from userdp.data.tables.declared import expanded, expanded_keys
from userdp.data.tables.reading import like_cells, names_of
from userdp.errors import BadInput, UserdpError
from userdp.settings import shown
from userdp.tracebacks import told, without_internals

USER, TARGET = "groups", "y"  # columns of the table that is trained on, beside those of X
_NOT_NUMERIC = ("categorical", "dates", "date_parts")
_SET_BY_FIT = {"user", "target", "positive", "target_levels", "target_range", "epsilon", "delta", "seed", "progress"}
_SAID_OF_X = ("Expected 2D", "Found array with", "X has ", "X does not", "Complex data not", "The feature names should")
"""The beginnings of those errors of scikit-learn whose first line quotes no cell."""
_REMEDIES_OF_X = ("Reshape your data", "Feature names must be")
_LINEAR_ALONE = {"codes", "levels", "buckets", "sequence", "images", "image_shape"}


@dataclass(kw_only=True, eq=False, repr=False)  # the constructor stores its arguments, and `fit` checks them
class _Private(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear model of one loss of `userdp.problems`; docs/scikit-learn.md shows how its parameters are used.

    Attributes, after `fit`:
        model_: the `userdp.TrainedModel`, with its plan, its records and its report.
        guarantee_: the `userdp.Guarantee`, for the users whom ``groups`` names.
        coef_, intercept_: the coefficients of the released model in the units of the columns of X: (k,) and a number;
            of classes (1, k) and (1,) for two by their log odds, (K, k) and (K,) for several.
        coef_names_: k names, the columns of X if all are numeric; a level of a column is against its first level.
        n_features_in_, feature_names_in_: as in scikit-learn.
    """

    _problem: ClassVar[str]

    epsilon: float | None = None
    """Budget of one call of `fit`; required."""
    delta: float | None = None
    """Budget of one call of `fit`; required."""
    bounds: Any = None
    """The least and the greatest value of numeric columns, which must be public: one pair for all, a list of pairs in
    the order of the columns of X, or a dict by name. Columns without names are "x0", "x1", ..."""
    schema: Mapping[str, Any] | None = None
    """More declarations of columns, with the keys of [data] that `userdp.train` takes: ``categorical``, ``dates``,
    ``impute``, ``users``, ... By default no user is held out (``test_fraction`` is 0)."""
    strategy: str | Mapping[str, Any] = "auto"
    """The name of a strategy, or a dict with ``kind`` and its settings."""
    settings: Mapping[str, Any] | None = None
    """More keywords of `userdp.train`, such as ``{"noise": "secure", "problem": {"radius": 2.0}}``."""
    random_state: int | None = None
    """Seed of sampling and simulated noise; None for a new one in each `fit`. Whoever knows it can subtract simulated
    noise, so real releases need ``settings={"noise": "secure"}``."""
    rows_are_users: bool = False
    """True if no user has two rows, so that `fit` needs no ``groups``."""
    verbose: bool = False
    """Show the progress of training."""
    on_unknown: OnUnknown = "nan"
    """The prediction for a row with a cell that is no declared level of its column: "nan"; "reference", that of the
    first level; or "error", none for any row."""

    @without_internals
    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None, **others: Any) -> Self:  # noqa: N803
        """Train with privacy; the whole budget is spent by each call.

        Args:
            X: (N, d) features, a DataFrame or an array. Cells are read as `userdp.train` reads them: numbers are
                clipped into their bounds, and rows with a missing number or target are set aside.
            y: (N,) targets.
            groups: (N,) the user of each row, whom the guarantee protects with all their rows.
            **others: refused, such as ``sample_weight``.

        Raises:
            BadInput: a parameter or an argument cannot be used; or a search, cross-validation or another estimator
                calls, or a pipeline's step learns from private rows.
            RunFailed: the run stopped.
        """
        if others:
            raise BadInput(
                f"fit takes X, y and groups, and no {next(iter(others))}: every user has the same weight; leave it out"
            )
        check_callers(self)
        frame = self._frame(X, reset=True)
        declared = self._declared([str(name) for name in frame])
        for name, values in ((TARGET, y), (USER, self._users(groups, len(frame)))):
            if name in frame:
                raise BadInput(f"X has a column {name!r}, the name that fit gives to its argument: rename the column")
            frame[name] = _column(name, values, len(frame))
        seed = secrets.randbits(62) if self.random_state is None else self.random_state
        budget: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, "seed": seed, "strategy": self.strategy}
        self.model_ = train(frame, user=USER, target=TARGET, progress=bool(self.verbose), **budget, **declared)
        self.guarantee_: Guarantee = self.model_.guarantee
        self._read_coefficients()
        return self

    def _frame(self, X: Any, reset: bool) -> pd.DataFrame:  # noqa: N803
        """Return X as a table with names of text; ``reset`` remembers its columns, else they are compared."""
        if isinstance(X, pd.DataFrame):
            self._validated(X, reset=reset, skip_check_array=True)
            frame = X.reset_index(drop=True)
        else:  # no cell decides whether there is an error, or how the cells of others in a list are read
            dtype = None if isinstance(X, np.ndarray) or issparse(X) else object
            how: dict[str, Any] = {"accept_sparse": True, "ensure_all_finite": False, "ensure_min_samples": int(reset)}
            X = self._validated(X, reset=reset, dtype=dtype, **how)  # noqa: N806
            frame = pd.DataFrame(cast("Any", X).toarray() if issparse(X) else X)
        frame.columns = pd.Index(getattr(self, "feature_names_in_", [f"x{place}" for place in range(frame.shape[1])]))
        return frame

    def _validated(self, X: Any, **how: Any) -> Any:  # noqa: N803
        """Return X as scikit-learn checks it, whose errors list cells, and names, which may be such: `names_of`."""
        try:
            return validate_data(self, X, **how)
        except ValueError as error:
            first, *lines = str(error).split("\n")
            if not first.startswith(_SAID_OF_X):
                raise BadInput(f"X cannot be used ({told(error)}): give a table of numbers") from None
            if not names_of(getattr(self, "feature_names_in_", ()), map(str, getattr(X, "columns", ()))):
                lines = [line for line in lines if line.startswith(_REMEDIES_OF_X)]
            raise BadInput("\n".join([first.removesuffix(":"), *lines])) from None

    def _users(self, groups: ArrayLike | None, rows: int) -> ArrayLike:
        if self.rows_are_users:
            if groups is not None:
                raise BadInput(
                    "groups is given, and rows_are_users = True makes every row a user: leave one of them out"
                )
            return np.arange(rows)
        if groups is None:
            raise BadInput(
                "groups is missing: give the user of each row, fit(X, y, groups=...), or in a pipeline "
                "fit(X, y, STEP__groups=...); only if no user has two rows, set rows_are_users=True"
            )
        return groups

    def _declared(self, names: list[str]) -> dict[str, Any]:
        """Return the keywords of `train` that follow from the parameters, for columns with these names."""
        found: dict[str, Any] = {}
        for field in ("schema", "settings"):
            given = _mapping(field, getattr(self, field))
            for key in given:
                if key in _LINEAR_ALONE:
                    raise BadInput(f"{field} has {key!r}, and estimators are linear in columns of X: use userdp.train")
                if key in found or key in _SET_BY_FIT or key == "strategy":
                    raise BadInput(f"{field} has {key!r}, which another parameter or argument gives: leave it out")
            found |= given
        others = [name for key in _NOT_NUMERIC if isinstance(found.get(key), Mapping) for name in found[key]]
        others.append(found.get("split_column"))
        by_name = [
            *filter(None, others),
            *(self.bounds if isinstance(self.bounds, Mapping) else found.get("ranges", ())),
        ]
        if like_cells(names) and not names_of([str(name) for name in by_name], names):
            raise BadInput(
                "the names of X's columns look like the cells of a table that has no header: name its columns (header "
                "= None, names = [...] of pandas.read_csv), or declare bounds by name"
            )
        features = found.setdefault("features", [name for name in names if name not in others])
        if "ranges" not in found:
            found["ranges"] = expanded_keys("bounds", _ranges(self.bounds, features))
            if lacking := [name for name in expanded("features", features) if name not in found["ranges"]]:
                quoted = lacking[0] in names_of([*found["ranges"]], names)
                which = f"column {lacking[0]!r}" if quoted else f"{len(lacking)} columns"
                raise BadInput(
                    f"bounds has no [low, high] for {which} of X: declare the values that a column can have, "
                    "not those that it has; or describe it in schema (categorical, dates)"
                )
        elif self.bounds is not None:
            raise BadInput("bounds and schema['ranges'] both declare the values of columns: leave one of them out")
        if "split_column" not in found:
            found.setdefault("test_fraction", 0.0)
        found["output"] = {"reference": False} | _mapping("settings['output']", found.get("output"))
        found["problem"] = _mapping("settings['problem']", found.get("problem")) | {"kind": self._problem}
        if not found["problem"].get("intercept", True):
            raise BadInput("settings['problem'] has intercept = False: bounds move columns, so estimators need one")
        return self._with_target(found)

    @abstractmethod
    def _with_target(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords of `train` with those that declare the target."""

    def _read_coefficients(self) -> None:
        config, model = self.model_.config, self.model_.model
        reading = config.data.columns.samples.coefficients(intercept=True)
        scores = model.reshape(-1, reading.of_model.shape[1])
        values = np.stack([reading.of_model @ score + reading.offset for score in scores])
        self.coef_names_ = reading.names[:-1]
        self.coef_: NDArray[np.float64] = values[:, :-1]
        self.intercept_: Any = values[:, -1]

    def _predicted(self, X: Any) -> pd.DataFrame:  # noqa: N803
        check_is_fitted(self)
        return self.model_.predict(self._frame(X, reset=False), on_unknown=self.on_unknown)

    @without_internals
    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the (N,) predicted targets of X (N, d); NaN for rows that lack a number, or as ``on_unknown`` says.

        Scores of predictions are exact functions of the rows given, whom the guarantee does not cover.
        """
        return cast("NDArray[Any]", self._predicted(X)["prediction"].to_numpy())

    @without_internals
    def __sklearn_clone__(self) -> Self:
        check_callers(self)  # whoever fits many times clones first, and hides errors of fits
        return cast("Self", super().__sklearn_clone__())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    target_range: Any = None
    """[low, high] of y, public knowledge; required."""

    def _with_target(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.target_range is None:
            raise BadInput("target_range is missing: declare the least and the greatest value that y can have")
        return found | {"target_range": self.target_range}

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return R^2, as scikit-learn's regressors do; `BadInput` if y cannot be compared."""
        with _compared():
            return float(super().score(X, y, sample_weight))

    def _read_coefficients(self) -> None:
        super()._read_coefficients()
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])


class PrivateLinearRegression(_PrivateRegressor):
    """Least squares, ``problem="squared"``; ``target_range`` declares the least and the greatest target."""

    _problem = "squared"


class PrivatePoissonRegressor(_PrivateRegressor):
    """Counts, ``problem="poisson"``; ``target_range`` is 0 and the greatest count that y can have."""

    _problem = "poisson"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return D^2, the share of the Poisson deviance that is explained, as scikit-learn's PoissonRegressor does."""
        with _compared():
            return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    classes: Any = None
    """All classes that y can have, public knowledge; required. Rows with another one are set aside."""

    def _with_target(self, found: dict[str, Any]) -> dict[str, Any]:
        self.classes_ = np.unique(np.asarray([] if self.classes is None else self.classes))
        if len(self.classes_) < 2:
            raise BadInput(f"classes = {shown(self.classes)}: declare all classes that y can have, as in ['no', 'yes']")
        return found | {"target_levels": self.classes_.tolist()}

    @without_internals
    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the (N,) likeliest classes for X (N, d); NaN for rows that lack a number."""
        predicted = self._predicted(X)["prediction"]
        numeric = self.classes_.dtype.kind in "iuf"
        names = [float(one) if numeric else cell_text(one) for one in self.classes_.tolist()]
        places = pd.Index(names).get_indexer(pd.Index(predicted))
        if (places < 0).any():
            return cast("NDArray[Any]", pd.Series(self.classes_).reindex(places).to_numpy())
        return self.classes_[places]

    @without_internals
    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the (N, K) probabilities of ``classes_``; NaN for rows that lack a number."""
        return self._predicted(X).drop(columns="prediction").to_numpy(dtype=np.float64)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return the accuracy, as scikit-learn's classifiers do; `BadInput` if y cannot be compared."""
        with _compared():
            return float(super().score(X, y, sample_weight))


class PrivateLogisticRegression(_PrivateClassifier):
    """Two classes, ``problem="logistic"``; ``classes`` declares both, and the greater one has the probability."""

    _problem = "logistic"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class PrivateClassifier(_PrivateClassifier):
    """Several classes, ``problem="softmax"``, with coefficients for each of the declared ``classes``."""

    _problem = "softmax"


@contextmanager
def _compared() -> Iterator[None]:
    """Turn errors of scikit-learn's scores into `BadInput`, for their text lists the cells that they cannot compare."""
    try:
        yield
    except (UserdpError, NotFittedError):
        raise
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"score: y cannot be compared with predictions ({told(error)}): give targets as in fit"
        ) from None


def _column(name: str, values: Any, rows: int) -> "pd.Series[Any]":
    """Return one cell per row, with the dtype of a Series."""
    if values is None:
        raise BadInput(f"fit requires {name} to be passed, but the target {name} is None: give one value per row")
    if isinstance(values, list | tuple):
        values = np.asarray(values, dtype=object)  # cells of many types keep their own
    column = values if isinstance(values, pd.Series) else pd.Series(column_or_1d(values, warn=True))
    if len(column) != rows:
        raise BadInput(f"{name} has {len(column)} values, and X has {rows} rows: give one value per row")
    return column.reset_index(drop=True)


def _mapping(field: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping | None):
        raise BadInput(f"{field} = {shown(given)}: must be a dict of keywords, or None")
    return dict(given or {})


def _ranges(bounds: Any, names: list[str]) -> dict[str, Any]:
    """Return the range of each column; `BadInput` for a list that does not fit the columns."""
    if bounds is None or isinstance(bounds, Mapping):
        return dict(bounds or {})
    pairs = list(bounds) if np.iterable(bounds) else []
    if pairs and not any(map(np.iterable, pairs)):
        return dict.fromkeys(names, pairs)
    if len(pairs) != len(names):
        raise BadInput(
            f"bounds = {shown(bounds)}: must be a pair (low, high), one pair for each of the {len(names)} numeric "
            "columns of X, or a dict by name"
        )
    return dict(zip(names, pairs, strict=True))

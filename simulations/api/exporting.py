"""A model as ONNX: a graph from a table's own columns, in their own units, to the columns of `SavedModel.predict`.

Every input and output is a vector (N,) with a cell for each row:

- a column of numbers is float64; NaN or an infinity is a missing cell;
- a column of dates is float64, seconds since 1970-01-01 in UTC; NaN, or a year outside 1 to 9999, is a missing cell;
- a column of levels is text, each cell as `userdp.data.tables.cells.cell_text` writes it: 1.0 is "1", True is "1"; ""
  is a missing cell.

A row that the model cannot use, or with text that is no declared level, gets NaN, or "" in place of a class; with
``on_unknown = "reference"`` such text counts as the first level. Numbers are held to the declared range of targets.
Features are made in the arithmetic of training: scaled in float64, rounded to float32.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
import pandas as pd
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from simulations.api.classes import in_units, level_values, with_names
from simulations.records.run_directory import writing
from simulations.reports.explain import promise_texts
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.data.block import Block
from userdp.data.tables.columns import Columns
from userdp.data.tables.date_cells import days_since
from userdp.data.tables.declared import checked_levels
from userdp.data.tables.numeric import Numeric
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.bounds import INWARDS
from userdp.problems.families import Family
from userdp.problems.generalised_linear import Logistic, Poisson
from userdp.problems.linear_scores import LinearScores
from userdp.problems.one_score import OneScore
from userdp.problems.softmax import Softmax

if TYPE_CHECKING:
    from userdp.neural.problem import TorchProblem

OPSET, LEVELS = 18, "ai.onnx.ml"  # the operators' version, and the home of those for levels
_EPOCH, _DAY = np.datetime64(0, "us"), 86_400.0
_YEARS = -62_135_596_800.0, 253_402_300_800.0 - 2**-14  # seconds of the years 1 to 9999
_LARGEST = float(np.finfo(np.float64).max)
_INSTEAD = "score such tables with `userdp predict` or by MLflow"
Operand = str | float | NDArray[Any]
Cells = tuple[str, str | None]
"""The names of a column's values, and of the mask of its missing cells; None if these have a declared value."""


def write_onnx(
    problem: Problem, model: Vector, columns: Columns, guarantee: Guarantee, path: Path, *, on_unknown: str = "nan"
) -> None:
    """Write the model (p,) of a problem on a table's columns; see `simulations.SavedModel.to_onnx`."""
    if columns.term is not None:
        raise BadInput(f"to_onnx: the graph has no known term of scores, as column {columns.term.column!r}; {_INSTEAD}")
    if columns.survival is not None:
        raise BadInput(f"to_onnx: data.survival predicts from all periods together, which has no form here; {_INSTEAD}")
    graph = _Graph()
    table = _Table(graph, columns, reference=on_unknown == "reference")
    features = table.features()
    scores = _scores(problem, model, graph, features, table.samples)
    zeros, target = np.zeros((1, len(table.samples.names)), dtype=np.float32), np.zeros(1, dtype=np.float32)
    example = pd.DataFrame(problem.predict(model, Block(zeros, np.arange(2), target)))
    if len(example.columns) == 1:
        scores = in_units(scores, problem, columns, graph.add)
    outputs = _outputs(graph, scores, example, columns, graph.any_of(table.unusable))
    if taken := sorted({one.name for one in outputs} & set(table.inputs)):
        raise BadInput(f"to_onnx: the table's column {taken[0]!r} has the name of an output; rename it and train again")
    inputs = [_vector(name, text, about) for name, (text, about) in table.inputs.items()]
    made = helper.make_graph(graph.nodes, "userdp", inputs, outputs, graph.constants, doc_string=str(guarantee))
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(LEVELS, 3)]
    file = helper.make_model(made, opset_imports=versions, ir_version=9, producer_name="userdp")
    helper.set_model_props(file, promise_texts(guarantee))
    onnx.checker.check_model(file)
    with writing(f"to_onnx({str(path)!r}):", "choose another path"):
        path.write_bytes(file.SerializeToString())


def _vector(name: str, text: bool, about: str = "") -> Any:
    kind = TensorProto.STRING if text else TensorProto.DOUBLE
    return helper.make_tensor_value_info(name, kind, ["rows"], doc_string=about)


class _Graph:
    """Nodes and constants of a graph, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: Operand, name: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node with one result, and return its name; numbers among ``inputs`` become constants."""
        names = [one if isinstance(one, str) else self._constant(one) for one in inputs]
        result = name or f"userdp/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [result], domain=domain, **attributes))
        return result

    def _constant(self, value: float | NDArray[Any]) -> str:
        name = f"userdp/constant/{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def codes(self, text: str, known: Mapping[str, int], otherwise: int) -> str:
        """Add the codes (N,) of cells of text."""
        of: dict[str, Any] = {"keys_strings": [*known], "values_int64s": [*known.values()], "default_int64": otherwise}
        return self.add("LabelEncoder", text, domain=LEVELS, **of)

    def any_of(self, masks: Sequence[str | None]) -> str | None:
        """Add the mask of rows in any of the masks; None if there are none."""
        given = [mask for mask in masks if mask is not None]
        result = given[0] if given else None
        for mask in given[1:]:
            result = self.add("Or", str(result), mask)
        return result


class _Table:
    """The declared columns as inputs of a graph, and the features made of them as in `userdp.data.tables.numeric`.

    Attributes:
        inputs: column -> (True for text, its meaning).
        unusable: the masks of rows that the model cannot use.
    """

    def __init__(self, graph: _Graph, columns: Columns, *, reference: bool) -> None:
        samples = columns.samples
        if not isinstance(samples, Numeric):
            (key, *_) = samples.keys & {"codes", "sequence", "images"}
            raise BadInput(f"to_onnx: data.{key} makes samples that are no features of single cells; {_INSTEAD}")
        if samples.dated.parts:
            column = next(iter(samples.dated.parts))
            raise BadInput(
                f"to_onnx: date_parts names {column!r}, and ONNX has no calendar; train on a column of the parts under "
                f"categorical, or {_INSTEAD}"
            )
        self.graph, self.samples, self.reference = graph, samples, reference
        self.inputs: dict[str, tuple[bool, str]] = {}
        self.unusable: list[str] = []
        self._missing: dict[str, str] = {}
        self._cells: dict[str, Cells] = {}

    def features(self) -> str:
        """Add the features (N, k), float32."""
        add, samples, low = self.graph.add, self.samples, self.samples.low
        made = []
        for column, (first, last) in samples.ranges.items():
            value, gone = self._derived(column) if column in samples.derive else self._number(column)
            if column in samples.dated.bounds:
                value = add("Sub", value, float(days_since(np.array([samples.dated.first(column)]), _EPOCH)[0]))
            if gone is not None:
                self.unusable.append(gone)
            unit = add("Div", add("Sub", add("Clip", value, first, last), first), last - first)
            made.append(self._column(add("Add", add("Mul", unit, 1.0 - low), low)))
        levels = [self._levels(column) for column in samples.categorical]  # also the masks of their missing cells
        made += [self._column(self._missing[column]) for column in samples.indicators]
        return add("Concat", *made, *levels, axis=1)

    def _column(self, cells: str) -> str:
        numbers = self.graph.add("Cast", cells, to=TensorProto.FLOAT)
        return self.graph.add("Unsqueeze", numbers, np.array([1]))

    def _number(self, column: str) -> Cells:
        """Add a column of numbers, or of dates in days since 1970, with the declared value in missing cells."""
        if column in self._cells:
            return self._cells[column]
        add, instead = self.graph.add, self.samples.instead_of_missing(column)
        dates = column in self.samples.dates
        about = "seconds since 1970-01-01 in UTC" if dates else "numbers"
        self.inputs[column] = (False, f"{about}; NaN is a missing cell")
        low, high = _YEARS if dates else (-_LARGEST, _LARGEST)
        gone = add("Not", add("And", add("GreaterOrEqual", column, low), add("LessOrEqual", column, high)))
        if isinstance(instead, np.datetime64):
            instead = float(days_since(np.array([instead]), _EPOCH)[0]) * _DAY
        value = add("Where", gone, instead or 0.0, column)
        self._missing[column] = gone
        self._cells[column] = add("Div", value, _DAY) if dates else value, gone if instead is None else None
        return self._cells[column]

    def _derived(self, name: str) -> Cells:
        """Add a column made of others, as `userdp.data.tables.derived.Derivation.values` computes it."""
        add, made = self.graph.add, self.samples.derive[name]
        cells, masks = zip(*map(self._number, made.of), strict=True)
        wrong: str | None = None
        if made.kind == "count_above":
            above = [add("Greater", one, made.threshold or 0.0) for one in cells]
            value = add("Sum", *(add("Cast", one, to=TensorProto.DOUBLE) for one in above))
        elif made.kind == "ratio":
            wrong = add("Equal", cells[1], 0.0)
            value = add("Div", cells[0], add("Where", wrong, 1.0, cells[1]))
        elif made.kind == "log1p":
            wrong = add("LessOrEqual", cells[0], -1.0)
            value = add("Log", add("Add", add("Where", wrong, 0.0, cells[0]), 1.0))
        else:
            value = add("Mul" if made.kind == "product" else "Sub", *cells)
        gone = self.graph.any_of([*masks, wrong])
        if gone is None or made.otherwise is None:
            return value, gone
        return add("Where", gone, made.otherwise, value), None

    def _levels(self, column: str) -> str:
        """Add the features of a column of levels (N, L): 1 at a cell's level."""
        add, declared = self.graph.add, checked_levels(column, self.samples.categorical[column])
        about = f"any other counts as {declared[0]!r}" if self.reference else "any other gives no prediction"
        self.inputs[column] = (True, f"text, one of {', '.join(map(repr, declared))}; '' is a missing cell; {about}")
        codes = {level: code for code, level in enumerate(declared)}
        instead = self.samples.instead_of_missing(column)
        if isinstance(instead, int):
            codes[""] = instead
        self._missing[column] = self.graph.codes(column, {"": 1}, 0)
        found = self.graph.codes(column, codes, 0 if self.reference else -1)
        if not self.reference:
            self.unusable.append(add("Equal", found, np.array(-1)))
        hot = add("Equal", add("Unsqueeze", found, np.array([1])), np.arange(len(self.samples.levels[column])))
        return add("Cast", hot, to=TensorProto.FLOAT)


def _scores(problem: Problem, model: Vector, graph: _Graph, features: str, samples: Numeric) -> str:
    """Add a model's scores (N, K), float64, of counts their means; return their name.

    Raises:
        BadInput: a model that is neither linear nor a torch module.
    """
    if problem.name == "torch":
        module = _module(cast("TorchProblem", problem), model, features, len(samples.names))
        graph.nodes.extend(module.node)
        graph.constants.extend(module.initializer)
        return graph.add("Cast", module.output[0].name, to=TensorProto.DOUBLE)
    # A family of the user's own may predict something else of a score.
    of_score = isinstance(problem, OneScore) and type(problem.family).predictions is Family.predictions
    if not (isinstance(problem, LinearScores) and (of_score or isinstance(problem, Logistic | Poisson | Softmax))):
        raise BadInput(
            f"to_onnx: problem.kind = {problem.name!r} has no form in ONNX, only linear models (squared, "
            f"logistic, poisson, softmax) and torch modules have one; {_INSTEAD}"
        )
    cells = graph.add("Cast", features, to=TensorProto.DOUBLE)
    if problem.feature_bound < 1:
        cells = graph.add("Clip", cells, -problem.feature_bound, problem.feature_bound)
    limit = problem.feature_norm - problem.intercept
    if limit < samples.largest_norm:
        norms = graph.add("ReduceSum", graph.add("Abs", cells), np.array([1]))
        larger = graph.add("Greater", norms, limit)
        cells = graph.add("Mul", cells, graph.add("Where", larger, graph.add("Div", limit * INWARDS, norms), 1.0))
    models = model.reshape(problem.outputs, problem.width)
    scores = graph.add("MatMul", cells, np.ascontiguousarray(models[:, : problem.columns].T))
    if problem.intercept:
        scores = graph.add("Add", scores, models[:, -1])
    return graph.add("Exp", scores) if isinstance(problem, Poisson) else scores


def _module(problem: "TorchProblem", model: Vector, features: str, columns: int) -> Any:
    """Return the graph of a torch module from ``features`` (N, columns), made by torch's own exporter."""
    import torch  # noqa: PLC0415 -- slow to import

    file: Any = io.BytesIO()  # torch takes it, and its types say that it does not
    axes = {"features": {0: "rows"}, "scores": {0: "rows"}}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.onnx.export(
                problem.of_rows(model),
                (torch.zeros(2, columns),),
                file,
                dynamo=False,  # the other exporter needs onnxscript
                opset_version=OPSET,
                input_names=["features"],
                output_names=["scores"],
                dynamic_axes=axes,
            )
    except Exception as error:  # of torch's exporter, or of the module's own code
        raise BadInput(
            f"to_onnx: torch.onnx cannot export problem.module ({type(error).__name__}: {error}); {_INSTEAD}"
        ) from None
    if any(one.category.__name__ == "TracerWarning" for one in caught):
        raise BadInput(f"to_onnx: problem.module computes rows in ways that depend on their values; {_INSTEAD}")
    graph = onnx.compose.add_prefix(onnx.load_from_string(file.getvalue()), "module/").graph
    graph.node.insert(0, helper.make_node("Identity", [features], ["module/features"]))
    return graph


def _outputs(graph: _Graph, scores: str, example: pd.DataFrame, columns: Columns, gone: str | None) -> list[Any]:
    """Add the columns of predictions, such as ``example``; ``gone`` is the mask of rows that have none.

    Returns their names and types.
    """
    levels = columns.target_levels if len(example.columns) > 1 else None
    first, *shares = _values(graph, scores, [*map(str, example)], columns)
    text = False
    if levels is None:
        first = graph.add("Cast", first, to=TensorProto.DOUBLE)
    else:
        example, classes = with_names(example, levels), level_values(levels)
        text = classes.dtype == object
        first = _named(graph, first, classes.tolist(), gone) if text else graph.add("Gather", classes, first)
    for place, (name, value) in enumerate(zip(example, [first, *shares], strict=True)):
        masked = gone is not None and not (text and place == 0)
        graph.add("Where" if masked else "Identity", *((gone, np.nan) if masked else ()), value, name=str(name))
    return [_vector(str(name), text and place == 0) for place, name in enumerate(example)]


def _values(graph: _Graph, scores: str, kinds: Sequence[str], columns: Columns) -> list[str]:
    """Add what each of ``kinds``, the columns of predictions, holds for every row; a class is its number."""
    add = graph.add
    if len(kinds) > 2:
        shares = add("Softmax", scores, axis=1)
        every = [add("Gather", shares, np.array(k), axis=1) for k in range(len(kinds) - 1)]
        return [add("ArgMax", scores, axis=1, keepdims=0), *every]
    value = add("Reshape", scores, np.array([-1]))
    if len(kinds) == 2:
        code, share = add("Cast", add("Greater", value, 0.0), to=TensorProto.INT64), add("Sigmoid", value)
        return [code, share] if columns.target_levels is None else [code, add("Sub", 1.0, share), share]
    return [value]


def _named(graph: _Graph, code: str, levels: Sequence[str], gone: str | None) -> str:
    """Add the classes of codes (N,) by name; '' for a row without a prediction."""
    known = code if gone is None else graph.add("Where", gone, np.array(-1), code)
    places = [*range(len(levels))]
    return graph.add("LabelEncoder", known, domain=LEVELS, keys_int64s=places, values_strings=levels, default_string="")


def meaning(path: Path) -> dict[str, Any]:
    """Return what a file of `write_onnx` says of itself: inputs by name, outputs, and its metadata."""
    model = onnx.load(path)
    return {
        "onnx": str(path),
        "inputs": {one.name: one.doc_string for one in model.graph.input},
        "outputs": [one.name for one in model.graph.output],
        "metadata": {one.key: one.value for one in model.metadata_props},
    }


def show_meaning(values: Mapping[str, Any], console: Console) -> None:
    """Print the columns of a file of `write_onnx`, and its guarantee."""
    for name, about in values["inputs"].items():
        console.print(f"  {name}: {about}", highlight=False, markup=False)
    console.print(f"Predictions: {', '.join(values['outputs'])}", highlight=False, markup=False)
    console.print(f"Guarantee: {values['metadata']['userdp.guarantee']}", highlight=False, markup=False)
    console.print(f"The model: {values['onnx']}", highlight=False, markup=False, soft_wrap=True)

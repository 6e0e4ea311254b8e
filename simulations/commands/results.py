"""Verbs that read the directories of runs."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from simulations.terminal import Json, TrustCode, answer, argument, examples, option, working
from userdp.errors import BadInput

OnUnknown = Annotated[
    str,
    option(
        "For a row with a cell that is no declared level of its column: nan (no prediction, the default), reference "
        "(that of the first level) or error.",
        metavar="HOW",
    ),
]


@examples(
    "userdp report runs/quickstart-auto-seed1",
    "userdp report runs/quickstart-auto-seed1 --released for-others",
    "userdp report runs/quickstart-auto-seed1 --card",
    "userdp report runs/visits-auto-seed0 --coefficients --json | jq '.[] | {coefficient, estimate, interval}'",
)
def report(
    directory: Annotated[Path, argument("DIR", "Directory of a run, a comparison or an audit.")],
    released: Annotated[
        Path | None,
        option(
            "Write a copy of the run for others into this new folder: report, model, guarantee, and no field that the "
            "guarantee does not cover.",
            metavar="FOLDER",
        ),
    ] = None,
    card: Annotated[
        bool,
        option(
            "Write card.html and card.json instead: one page for those who decide on a release, in the order of NIST "
            "SP 800-226.",
            "--card",
        ),
    ] = False,
    coefficients: Annotated[
        bool,
        option(
            "Show the coefficients of a run's linear model instead, in the units of the table's columns; with standard "
            "errors and intervals if the run set a share of its budget aside (strategy.coefficients = 0.5).",
            "--coefficients",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run, comparison or audit again."""
    with working():
        from simulations.audit.report import AUDIT, render_audit  # noqa: PLC0415
        from simulations.comparison.report import render_comparison  # noqa: PLC0415
        from simulations.comparison.table import SUMMARY  # noqa: PLC0415
        from simulations.reports.card import render_card  # noqa: PLC0415
        from simulations.reports.report import copy_released, render  # noqa: PLC0415

        if card and coefficients:
            raise BadInput("--card and --coefficients are two answers: give one of them")
        copied = None if released is None else copy_released(directory, released)
        values: Any
        if coefficients:
            from simulations.api.prediction import load_model  # noqa: PLC0415 -- slow, and for this alone
            from simulations.reports.coefficients import show_coefficients  # noqa: PLC0415

            values = list(load_model(released or directory).coefficient_rows)
            show = partial(show_coefficients, values, Console())
        else:
            if card:
                written = render_card(released or directory)
            elif copied is not None:
                written = copied
            elif (directory / AUDIT).is_file():
                written = render_audit(directory)
            else:
                written = (render_comparison if (directory / SUMMARY).is_file() else render)(directory)
            values, show = {"file": str(written)}, partial(typer.echo, written)
    answer(as_json, values, show)


@examples(
    "userdp predict runs/heights-dp_fed_sgd-seed0 others.csv --keep person",
    "userdp predict runs/heights-dp_fed_sgd-seed0 others.parquet --output scores.parquet --json | jq .metrics",
)
def predict(
    directory: Annotated[Path, argument("RUN_DIRECTORY", "Directory of a run, or a copy made by report --released.")],
    table: Annotated[Path, argument("TABLE", "CSV or Parquet file.")],
    output: Annotated[
        Path | None,
        option("CSV or Parquet file for the predictions; TABLE-predictions.csv here by default.", metavar="FILE"),
    ] = None,
    keep: Annotated[
        list[str] | None, option("Copy this column of TABLE into the predictions; repeatable.", metavar="COLUMN")
    ] = None,
    on_unknown: OnUnknown = "nan",
    csv: Annotated[
        list[str] | None,
        option(
            "Form of TABLE, if it is another than that of the run's file: a key of data.csv, such as decimal=,; "
            "repeatable.",
            "--csv",
            metavar="KEY=VALUE",
        ),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Score a table with the model of a run: a prediction for each row.

    There are metrics, too, if the table has user and target.
    """
    with working():
        from simulations.api.scoring import score, show_scores  # noqa: PLC0415
        from simulations.config.run_config import overridden  # noqa: PLC0415

        how: Any = {"on_unknown": on_unknown, "trust_code": trust_code}
        how["csv"] = overridden({}, csv, "--csv", "key=value, such as decimal=,") if csv else None
        scores = score(directory, table, output, keep or (), **how)
    answer(as_json, scores.values, lambda: show_scores(scores, Console()))


@examples(
    "userdp export runs/heights-auto-seed0 --onnx heights.onnx",
    "userdp export for-others --onnx heights.onnx --json | jq .inputs",
    "userdp export runs/language-dp_fed_sgd-seed0 --transformers adapter",
)
def export(
    directory: Annotated[Path, argument("RUN_DIRECTORY", "Directory of a run, or a copy made by report --released.")],
    onnx: Annotated[Path | None, option("The ONNX file to write.", "--onnx", metavar="FILE")] = None,
    transformers: Annotated[
        Path | None,
        option(
            "The new folder to write a language model into, or its adapter, for transformers and peft.",
            "--transformers",
            metavar="FOLDER",
        ),
    ] = None,
    on_unknown: OnUnknown = "nan",
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write the model of a run for other programs, as ONNX.

    The file leads from the table's own columns to predictions. Linear models and torch modules can be written. The
    guarantee is in the file's metadata. A language model becomes a folder of Hugging Face's libraries, whose README.md
    states the guarantee.
    """
    with working():
        from simulations.api.prediction import load_model  # noqa: PLC0415

        if (onnx is None) == (transformers is None):
            raise BadInput("give one of --onnx FILE and --transformers FOLDER")
        saved = load_model(directory, trust_code=trust_code)
        show: Any
        if transformers is not None:
            saved.to_transformers(transformers)
            from simulations.api.language import language_files, show_language_files  # noqa: PLC0415

            values, show = language_files(transformers, saved.guarantee), show_language_files
        else:
            written = saved.to_onnx(cast(Path, onnx), on_unknown=cast(Any, on_unknown))
            from simulations.api.exporting import meaning, show_meaning  # noqa: PLC0415 -- needs onnx

            values, show = meaning(written), show_meaning
    answer(as_json, values, lambda: show(values, Console()))

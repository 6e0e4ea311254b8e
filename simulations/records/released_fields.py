"""Every field that leaves a run, with its kind: what may be shown to whom.

Readers ask this list and nothing else: `kept` makes what trackers and copies for others are given, and
docs/what-leaves.md is made from it (``python docs/make.py``). What a strategy notes each round stands in its class
(`strategies.core.recipe.Fact`). What is not listed counts as private, so a field that somebody forgets stays at
home; a test finds it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from strategies.core.recipe import notes_of
from strategies.registry import STRATEGIES

Kind = Literal["public", "noised", "held-out", "private", "environment"]
KINDS: Mapping[Kind, str] = {
    "public": "from the configuration, declarations and public randomness alone: no user's data enters",
    "noised": "a function of what was released under the guarantee, and of public numbers: covered by the guarantee. "
    "Where `holds` is false nothing is released under one, and it is exact",
    "held-out": "a function of the released model and of held-out users, exact about them, whom no guarantee covers. "
    "Simulation only; in a deployment there are none",
    "private": "an exact function of the training users' data, not covered by the guarantee: for the holder of the "
    "data alone. Its name, or that of a table it stands in, ends in `_private`",
    "environment": "time, memory and failures of machines: no value of the data, but time and memory grow with it, and "
    "no guarantee covers them",
}
"""What each kind means."""
SUFFIX = "_private"


@dataclass(frozen=True)
class Field:
    """A field that leaves a run.

    Attributes:
        file: where it stands.
        name: its path with dots, tables within it included; empty for all of the file.
        kind: see `KINDS`.
        told: what it is.
    """

    file: str
    name: str
    kind: Kind
    told: str

    def matches(self, name: str) -> bool:
        """Whether this is the field of that path, or the table that it stands in; "... of" is that of anything."""
        further = f"{self.name} " if self.name.endswith(" of") else f"{self.name}."
        return not self.name or name == self.name or name.startswith(further)


def _fields(file: str, *rows: tuple[str, Kind, str]) -> list[Field]:
    return [Field(file, *row) for row in rows]


def _facts() -> list[tuple[str, Kind, str]]:
    """What the rounds of any strategy note, as their classes declare it.

    Raises:
        ValueError: two strategies declare one name as of different kinds, or say different things of it.
    """
    found: dict[str, tuple[str, Kind, str]] = {}
    for strategy in STRATEGIES.values():
        for name, fact in notes_of(strategy).items():
            row = (f"fact.{name}", fact.kind, fact.meaning)
            if found.setdefault(name, row) != row:
                raise ValueError(f"{strategy.__name__}.notes: of {name!r} another strategy says {found[name]}")
    return [found[name] for name in sorted(found)]


_ROUND: tuple[tuple[str, Kind, str], ...] = (
    ("round", "noised", "number of the round; a test that fails may end a phase early"),
    ("seconds", "environment", "wall time of the round"),
    ("missing_users_private", "private", "users of the round's cohort that did not answer"),
    ("non_finite_users_private", "private", "users whose answer was not finite"),
    ("spent_epsilon", "noised", "what the ledger says after the round"),
    ("metric", "held-out", "metrics of the released model"),
)
_RESULT: tuple[tuple[str, Kind, str], ...] = (
    ("name", "public", "of the configuration"),
    ("strategy", "public", "its kind"),
    ("problem", "public", "its kind"),
    ("engine", "public", "local, ray or flower"),
    ("seed", "public", "of the configuration; with seeded noise, whoever knows it takes the noise off"),
    ("users", "public", "n: declared, or counted and taken as public, which the guarantee then says"),
    ("samples", "public", "the declared number of samples of all training users; null where none is declared"),
    ("samples_private", "private", "the same, counted; null where it is declared"),
    ("dimension", "public", "numbers in the model"),
    ("rounds", "noised", "how many rounds were run; a test that fails may end a phase early"),
    ("guarantee", "public", "what is promised, for the rounds that were run"),
    (
        "metrics",
        "held-out",
        "of the released model: means over users, the spread over users, ranking and calibration over all samples",
    ),
    (
        "confusion",
        "held-out",
        "of the released model on held-out samples: how many of each class (rows) it takes for each (columns), in the "
        "order of data.target_levels; absent where targets are not of several classes",
    ),
    ("measured_users", "held-out", "held-out users that hold a sample the model can use; absent where none does"),
    (
        "standard_errors",
        "held-out",
        "of metrics of the released model, one standard error over held-out users; absent of a run that failed, or "
        "where nothing is measured",
    ),
    (
        "curves",
        "held-out",
        "what the report's pictures of the released model are drawn from, on held-out samples: groups of like "
        "predictions, and the ROC curve; absent of fewer than ten users",
    ),
    ("reference.initial", "held-out", "the same metrics of the initial model"),
    (
        "reference.constant",
        "held-out",
        "the same of the best constant: what says the held-out users' mean target, rate or class shares of every "
        "sample; null where the loss has none",
    ),
    (
        "reference.released_constant",
        "held-out",
        "the same of the constant that the run released, which predicts the noisy mean target of every sample; null "
        "where it released none",
    ),
    ("reference_private.non_private", "private", "the same metrics of training without privacy on the same people"),
    (
        "better_than_constant",
        "held-out",
        "whether the main metric is below that of the released constant, or else of the best one; null without one",
    ),
    ("better_than_initial", "held-out", "whether the main metric fell below that of the initial model"),
    ("not_measured", "held-out", "why metrics say nothing about the model; absent where they do"),
    ("missing_users_private", "private", "users that did not answer, summed over rounds"),
    ("non_finite_users_private", "private", "users whose answer was not finite, summed over rounds"),
    ("seconds", "environment", "wall time, in all and a round"),
    ("peak_memory_mib", "environment", "peak resident memory"),
    (
        "computed",
        "environment",
        "how gradients of a torch module were computed in this process, which is measured on made-up users; null of "
        "other problems, and where nodes of other processes measured for themselves",
    ),
    ("versions", "public", "of what the result depends on"),
    ("code", "public", "SHA-256 of each file of code that the configuration names; absent where it names none"),
    ("error", "environment", "why the run stopped, without counts; absent where it did not"),
)

CELL, TABLE, COURSES, SUMMARY = (
    f"comparison: {name}" for name in ("cell.json", "results.parquet", "rounds.parquet", "comparison.json")
)

_WRITTEN_OUT: tuple[Field, ...] = (
    *_fields("config.toml", ("", "public", "the configuration with every default")),
    *_fields("plan.json", ("", "public", "all numbers that were fixed before any data were seen")),
    *_fields(
        "data.json",
        ("training_users", "public", "n"),
        ("held_out_users", "public", "users that metrics are measured on"),
        (
            "clipped_samples_private",
            "private",
            "samples that nodes had to clip into the problem's bounds, after loading",
        ),
        (
            "table_private",
            "private",
            "what loading the table counted, clipped and left out, column by column; null without a table",
        ),
    ),
    *_fields("guarantee.json", ("", "public", "the guarantee of the rounds that were run, and what is spent")),
    *_fields("rounds.parquet", *_ROUND),
    *_fields("model.npz", ("x", "noised", "the released model")),
    *_fields(
        "checkpoint.npz",
        (
            "state_private",
            "private",
            "what the run needs to go on, exact where the server's memory is: iterates of a phase, sums that get noise "
            "in later rounds, secret cohorts, counts of silent users; readable for the run's owner alone, removed when "
            "the run has ended",
        ),
    ),
    *_fields(
        "asked.npz",
        (
            "state_private",
            "private",
            "with secure noise the round under way and, if it is secret, its cohort; removed as well",
        ),
    ),
    *_fields("result.json", *_RESULT),
    *_fields(
        "report.html",
        (
            "page",
            "noised",
            "the page but for what follows: config.toml, plan.json, guarantee.json",
        ),
        ("held-out", "held-out", "verdict, course, metrics with their errors, pictures of predictions"),
        ("environment", "environment", "why it stopped, seconds and memory"),
        (
            "figures_private",
            "private",
            "the section that is marked so: what is private in other files",
        ),
    ),
    *_fields(
        "tracker",
        ("parameters", "public", "config.toml and the numbers of plan.json"),
        *(row for row in _ROUND if row[1] != "private"),
        ("final", "held-out", "metrics of the released model"),
        ("initial", "held-out", "the same of the initial model"),
        ("constant", "held-out", "the same of the released constant, or else of the best one"),
        ("epsilon", "public", "of the guarantee"),
        ("delta", "public", "of the guarantee"),
        ("guarantee", "public", "the guarantee in one sentence"),
        ("unit", "public", "whom it protects"),
        ("relation", "public", "what neighbours are"),
        ("adversary", "public", "from whom it protects"),
        ("holds", "public", "whether there is one"),
        ("assumptions", "public", "what it rests on"),
        ("error", "environment", "why the run stopped, without counts"),
        (
            "files",
            "noised",
            "config.toml, plan.json, guarantee.json; result.json, report.html without private fields",
        ),
    ),
    *_fields(
        "predict: FILE",
        ("prediction", "held-out", "of one row of the scored table, by the released model"),
        ("probability", "held-out", "of class 1; probability.0, probability.1, ... where there are several"),
        ("probability of", "held-out", "of each of the declared classes, by its name"),
    ),
    *_fields(
        "predict: --json",
        ("output", "public", "the file of predictions"),
        ("rows", "held-out", "rows of the scored table"),
        ("unusable_rows", "held-out", "rows that hold a cell which the model cannot use"),
        ("metrics", "held-out", "of the released model, on the scored table"),
        ("constant", "held-out", "the same of the best constant of the scored table"),
        ("initial", "held-out", "the same of the initial model"),
        ("not_measured", "public", "which column the table lacks; null where it was measured"),
        ("guarantee", "public", "of the model"),
    ),
    *_fields(
        "audit: audit.json, trade-off.csv, report.html",
        ("", "public", "claims, and guesses about made-up people: no data are read"),
    ),
    *_fields(
        "audit --one-run: audit.json, report.html",
        (
            "all_private",
            "private",
            "all of it: five runs on the file's own users, each of which would be covered by the promise of one alone",
        ),
    ),
    *_fields(
        CELL,
        ("digest", "public", "of the cell's configuration"),
        ("error_private", "private", "why the cell failed, or null; sentences about a table quote counts"),
        ("seconds", "environment", "wall time of the run"),
        ("result", "environment", "result.json, with its kinds; null where the cell left none"),
        *((f"result.{name}", kind, told) for name, kind, told in _RESULT),
        ("numbers", "public", "of plan.json"),
        ("predicted_excess", "public", "excess risk that the plan predicts"),
    ),
    *_fields(
        TABLE,
        *((name, "public", "what the cell is") for name in ("problem", "strategy", "kind", "seed", "directory")),
        *((name, "public", "a key of the grid") for name in ("data", "privacy")),
        ("main_metric", "held-out", "the metric that value, constant, initial and reference_private are of"),
        ("value", "held-out", "of the released model"),
        ("constant", "held-out", "of the best constant of the held-out users; constant.METRIC likewise"),
        ("initial", "held-out", "of the initial model; initial.METRIC likewise, for every metric"),
        ("metric", "held-out", "every metric of the released model"),
        ("reference_private", "private", "of training without privacy; reference_private.METRIC likewise"),
        ("better_than_constant", "held-out", "whether value is below constant"),
        ("better_than_initial", "held-out", "whether value is below initial"),
        ("error_private", "private", "why there is no value, or null; sentences about a table quote counts"),
        *((name, "public", "what was asked for") for name in ("unit", "epsilon", "delta")),
        *((name, "public", "what is promised") for name in ("relation", "holds", "spent_epsilon")),
        *((f"replace_one_{name}", "public", "the promise for replacing one") for name in ("epsilon", "delta")),
        ("seconds", "environment", "wall time of the run"),
        ("rounds", "noised", "how many rounds were run"),
        ("users", "public", "n"),
        ("group", "public", "samples of one user that the noise covers"),
        ("sample_level_epsilon", "public", "epsilon for one sample"),
        ("predicted_excess", "public", "excess risk that the plan predicts"),
        ("tuned", "public", "settings found on public synthetic data"),
        ("oracle", "public", "whether its settings were chosen by looking at the answers, so that nothing is promised"),
        ("oracle_private", "private", "the settings that were chosen so"),
    ),
    *_fields(
        COURSES,
        *((name, "public", "what the cell is") for name in ("problem", "strategy", "seed")),
        *((name, "public", "a key of the grid") for name in ("data", "privacy")),
        ("round", "noised", "number of the round"),
        ("spent_epsilon", "noised", "what the ledger says after the round"),
        ("value", "held-out", "main metric of the released model"),
    ),
    *_fields(
        SUMMARY,
        ("", "public", "what was compared, the guarantees and the versions"),
        ("oracle_private", "private", "settings that were chosen by looking at the answers"),
    ),
    *_fields(
        "comparison: oracle, cells/oracle-*",
        (
            "all_private",
            "private",
            "every file, also those that are public elsewhere: settings were chosen by looking at the answers",
        ),
    ),
    *_fields(
        "comparison: report.html, report.md",
        ("page_private", "private", "all of it: rankings are by held-out users and against training without privacy"),
    ),
)
"""All but what strategies note of their rounds."""


@cache
def all_fields() -> tuple[Field, ...]:
    """All fields, file by file. Of several that match, the one with the longest name is the field's.

    What strategies note stands in their classes, all of which this imports.
    """
    facts = _facts()
    shared = [row for row in facts if row[1] != "private"]
    whole = (*_WRITTEN_OUT, *_fields("rounds.parquet", *facts), *_fields("tracker", *shared))
    files = list(dict.fromkeys(field.file for field in whole))
    return tuple(sorted(whole, key=lambda field: files.index(field.file)))


def field_of(file: str, name: str) -> Field:
    """The entry of a field.

    Raises:
        LookupError: the list has none.
    """
    path = name.replace("/", ".")
    found = [field for field in all_fields() if field.file == file and field.matches(path)]
    if not found:
        raise LookupError(
            f"{file}: {name} is not in simulations/records/released_fields.py: say there of which kind it is"
        )
    return max(found, key=lambda field: len(field.name))


def fields_in(values: Any, path: str = "") -> dict[str, Any]:
    """Path with dots -> value, of all that is no table; lists and empty tables are values."""
    if not isinstance(values, Mapping) or (path and not values):
        return {path: values}
    found: dict[str, Any] = {}
    for name, inner in values.items():
        found |= fields_in(inner, f"{path}.{name}" if path else str(name))
    return found


def kept(file: str, values: Mapping[str, Any], kinds: Collection[Kind], path: str = "") -> dict[str, Any]:
    """The fields of those kinds; tables of which nothing is left are left out."""
    if set(kinds) == set(ALL_KINDS):
        return dict(values)  # whatever the list says
    found: dict[str, Any] = {}
    for name, inner in values.items():
        whole = f"{path}.{name}" if path else name
        if isinstance(inner, Mapping) and inner:
            if rest := kept(file, inner, kinds, whole):
                found[name] = rest
        elif _kind(file, whole) in kinds:
            found[name] = inner
    return found


def _kind(file: str, name: str) -> Kind:
    """Of a field; private where the list has none, or its name says so."""
    try:
        return "private" if is_private(name) else field_of(file, name).kind
    except LookupError:
        return "private"


def is_private(name: str) -> bool:
    """Whether a path says that the field is private."""
    return any(part.endswith(SUFFIX) for part in name.replace("/", ".").split("."))


ALL_KINDS: tuple[Kind, ...] = get_args(Kind)
SHARED: tuple[Kind, ...] = tuple(kind for kind in ALL_KINDS if kind != "private")
"""What trackers are given, and what reports and the console show of a run that is not for its holder alone."""
RELEASED: tuple[Kind, ...] = ("public", "noised")
"""What a copy for others holds."""

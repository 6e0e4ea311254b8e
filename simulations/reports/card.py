"""card.html and card.json: a page for those who decide on a run, in the order of NIST SP 800-226, section by section.

Every value is read from the files of the run directory, and only from their public and noised fields, so that the card
may be handed on with the model.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.records.coefficients import HIDDEN_LEVELS
from simulations.records.released_fields import KINDS, RELEASED, all_fields, kept
from simulations.records.run_directory import CARD, FILES, as_json, check_files, read_json, write_text, writing
from simulations.reports.explain import METRICS
from simulations.reports.report import fill, promise
from simulations.reports.standing import Usable
from strategies.core.about import NOTES, About
from strategies.core.plan import explained
from strategies.registry import STRATEGIES
from userdp.accounting.composition import rho_of
from userdp.accounting.guarantee import Guarantee
from userdp.tracebacks import without_internals

_NEEDED = ("guarantee.json", "plan.json", "config.toml", "result.json", "rounds.parquet")
_BOUNDS = ("clip", "sensitivity", "radius", "gradient_norm", "gradient_bound", "coordinate_bound", "group")
_NOISES = ("noise", "multiplier", "choice_epsilon", "test_epsilon", "selection_epsilon")
"""Parts of the names of a plan's numbers that say how far one user reaches, and what hides it."""
_MOVED = ("clip_norm", "radius")  # facts of rounds: bounds that released values move

NO_GUARANTEE, SIMULATED, SAMPLES = "NO PRIVACY GUARANTEE", "SIMULATED NOISE", "SINGLE SAMPLES, NOT PEOPLE"
"""The alarms with which a card begins."""
BIAS = (
    "not measured by this run: noise and clips distort small groups, and users unlike most others, more than the rest"
)
SIDE_CHANNELS = {
    "Timing": "not covered: the time of an answer grows with its users' samples, that of a round follows the slowest "
    "node; seconds are left out of copies for others",
    "Sizes": "not covered: whoever sees the traffic, encrypted or not, sees the number and the sizes of messages, and "
    "with one user a node who takes part",
    "Failures": "a user who does not answer, or whose data a loss fails on, counts as zero or as a public centre; "
    "divisor and noise stay those of the plan, and a masked sum that lacks more nodes than planned is not released. "
    "Not covered: that a run stops early or does not start",
}
FLOATING_POINT = {
    "seeded": "NOT protected: noise is added in floating point, and the last bits of a release can reveal exact sums",
    "secure": "protected: noise is drawn exactly, on a grid, by OpenDP; the bounded rounding of sums is in the noise",
}
QUERIES = "none: a run releases the models of its rounds, which are planned before any data are read"
_MEANT = {
    "user": "all data of one person",
    "sample": "one SINGLE SAMPLE",
    "replace_one": "one unit is replaced by another",
    "add_or_remove": "one unit is there, or left out",
    "server": "the server sees vectors or sums",
    "sum": "the server sees noisy sums alone",
}
"""Value of a run -> its meaning, where no other is given."""
TUNING = "choices that were made by looking at private data, before this run or after it, are not covered"
ACCESS = (
    "the run directory holds exact figures in fields whose names end in _private, and stays with the holder of the "
    "data; `userdp report DIR --released FOLDER` copies the rest. Protection of the data themselves: to be filled in "
    "by the deploying organisation"
)


@dataclass(frozen=True)
class Line:
    """A line of the card: the file and key of its value are ``source``, which is empty where words hold for any run."""

    name: str
    value: Any
    source: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Part:
    """A part of the card, and what NIST SP 800-226 treats there."""

    title: str
    about: str
    lines: list[Line]


class Values:
    """The public and noised values of a run directory; `BadInput` if a file is missing."""

    def __init__(self, directory: Path) -> None:
        check_files(directory, _NEEDED, "a run that has ended, such as runs/quickstart-...")
        read: dict[str, Any] = {name: read_json(directory / name) for name in _NEEDED if name.endswith(".json")}
        read["config.toml"] = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
        rounds = pd.read_parquet(directory / "rounds.parquet")
        self.usable = Usable.of(rounds)  # noised, like all that it is made of
        read["rounds.parquet"] = {str(name): rounds[name].dropna().tolist() for name in rounds.columns}
        self._files = {name: kept(name, values, RELEASED) for name, values in read.items()}
        self.guarantee = Guarantee.from_dict(self["guarantee.json"])

    def __getitem__(self, source: str) -> Any:
        """Return the value at "file: key.key", or of the whole file at "file"; None if there is none."""
        file, _, keys = source.partition(": ")

        def inside(values: Any, key: str) -> Any:
            return values.get(key) if isinstance(values, Mapping) else None

        values = self._files[file]
        return values.get(keys, reduce(inside, keys.split("."), values)) if keys else values

    def line(self, name: str, source: str, meaning: str = "") -> list[Line]:
        """Return the line of a value; none without one."""
        value = self[source]
        return [] if value is None else [Line(name, value, source, meaning or _MEANT.get(str(value), ""))]

    @property
    def about(self) -> About | None:
        """The declarations of the strategy; None for one of code that the configuration names, which is not loaded."""
        kind = self["config.toml: strategy.kind"]
        return None if ":" in kind or kind not in STRATEGIES else STRATEGIES[kind].about


@without_internals
def render_card(directory: Path) -> Path:
    """Write card.html and card.json of a run into its directory, and return the page's path; BadInput for no run."""
    found = card(directory)
    page, values = (directory / name for name in CARD)
    with writing(f"{directory}:", "copy the run to a folder that can be written"):
        write_text(values, as_json(found))
        write_text(page, fill("card.html.md", found))
    return page


def card(directory: Path) -> dict[str, Any]:
    """Return the content of card.json: what to know first, parts of lines, assumptions, what leaves."""
    values = Values(directory)
    return {
        "name": values["result.json: name"],
        "strategy": values["result.json: strategy"],
        "holds": values.guarantee.holds,
        "first": _first(values),
        "parts": [asdict(Part(title, about, lines(values))) for title, about, lines in _PARTS],
        "assumptions": list(values.guarantee.assumptions),
        "leaves": _leaves(),
        "versions": values["result.json: versions"],
    }


def _first(values: Values) -> list[str]:
    """Return what a reader must know before all else: alarms, then the promise in plain words."""
    guarantee, plain_words = values.guarantee, promise(values["guarantee.json"])
    if not guarantee.holds:
        return [f"{NO_GUARANTEE}: {guarantee}", plain_words]
    simulated = values["config.toml: privacy.noise"] == "seeded"
    usable = values.usable
    alarms = {
        f"{SIMULATED}: {values['guarantee.json: noise']}; no real person is protected": simulated,
        f"{SAMPLES}: a person with many samples is protected less": guarantee.unit == "sample",
        "" if usable is None else usable.sentence: usable is not None and usable.few,
    }
    return [*(alarm for alarm, raised in alarms.items() if raised), plain_words]


def _promised(values: Values) -> list[Line]:
    if not values.guarantee.holds:
        return [Line("Guarantee", "none", "guarantee.json: holds"), *_rounds(values)]
    rho = None if values["config.toml: privacy.trust"] == "sum" else rho_of(values.guarantee)
    return [
        *values.line("Who is protected from whom", "guarantee.json: adversary"),
        *values.line("Trust", "config.toml: privacy.trust"),
        *values.line("Unit of privacy", "guarantee.json: unit"),
        *values.line("A person is one value of", "config.toml: data.user", "column of the table"),
        *values.line("Neighbouring data sets", "guarantee.json: relation"),
        *values.line("Epsilon", "guarantee.json: epsilon", "spent on whom it spent most, at this delta"),
        *values.line("Delta", "guarantee.json: delta", "probability with which the bound may fail"),
        *([] if rho is None else [Line("Rho", rho, "guarantee.json", "of zero-concentrated DP, by this accounting")]),
        *_numbers(values, ("replace_one_", "_level_epsilon")),
        *values.line("Epsilon asked for", "config.toml: privacy.epsilon", "the budget"),
        *values.line("Epsilon of held-out users", "guarantee.json: held_out_spent_epsilon", "of a budget as large"),
        *_rounds(values),
    ]


def _rounds(values: Values) -> list[Line]:
    return [
        *values.line("Users", "result.json: users", "n, public"),
        *values.line("Rounds", "result.json: rounds", "that were run"),
        *values.line("Rounds planned", "plan.json: rounds"),
    ]


def _algorithm(values: Values) -> list[Line]:
    about = values.about
    told = {} if about is None else {"meaning": about.summary_line}
    covered = (values["result.json: held_out.metrics"] or {}).items()
    return [
        *values.line("Strategy", "result.json: strategy", **told),
        *([] if about is None else [Line("Source", about.paper)]),
        *values.line("Accounting", "guarantee.json: accountant"),
        *values.line("Most samples of a user", "config.toml: data.max_samples", "others are left out"),
        *values.line("Samples of each user", "config.toml: data.samples_per_user", "made up"),
        Line("Tuning", TUNING),
        *(
            Line(_words(name), one, f"result.json: held_out.metrics.{name}", f"covered: {METRICS[name]}")
            for name, one in covered
        ),
        *([] if covered else [Line("Utility", "not measured under the guarantee", "config.toml: privacy.evaluate")]),
        *(
            Line("Usable share", one.share, "rounds.parquet: fact.filled_share", one.sentence)
            for one in (values.usable,)
            if one is not None
        ),
        *values.line("Levels that noise hides", "result.json: hidden_levels", HIDDEN_LEVELS),
        Line("Bias", BIAS),
        *_numbers(values, _BOUNDS),
        *(line for name in _MOVED for line in _moved(values, name)),
        *_numbers(values, ("participations",)),
        *_numbers(values, _NOISES),
        *_numbers(values, ("preparation_epsilon", "preparation_delta", "comparison_epsilon")),
        *values.line("Noise expected", "plan.json: noise", "l2 norm in a release"),
        *values.line("Signal at most", "plan.json: signal", "l2 norm of what the noise is added to"),
    ]


def _deployment(values: Values) -> list[Line]:
    return [
        *_numbers(values, ("server_epsilon",)),
        *values.line("Colluding nodes", "config.toml: privacy.colluding", "largest share, of the nodes of a sum"),
        *values.line("Silent nodes", "config.toml: privacy.lost_nodes", "most, of a sum that is released without them"),
        Line("Queries", QUERIES),
        *values.line("Randomness", "guarantee.json: noise"),
        Line("Floating point", FLOATING_POINT[values["config.toml: privacy.noise"]], "config.toml: privacy.noise"),
        *(Line(name, text) for name, text in SIDE_CHANNELS.items()),
        *values.line("Engine", "result.json: engine", "one process without a network, if local"),
        Line("Security and access", ACCESS),
        *values.line("Data", "config.toml: data.kind", "made-up people, if synthetic"),
        *values.line("Columns of numbers", "config.toml: data.features"),
        *values.line("Columns of levels", "config.toml: data.categorical"),
        *values.line("Target", "config.toml: data.target"),
    ]


_PARTS: tuple[tuple[str, str, Callable[[Values], list[Line]]], ...] = (
    (
        "The promise",
        "Top of the pyramid, section 2: privacy parameters, unit of privacy; and from its base the trust model",
        _promised,
    ),
    ("The algorithm", "Middle, section 3: algorithms and correctness, utility, bias", _algorithm),
    (
        "The deployment",
        "Base, section 4: side channels, security and access, data collection exposure",
        _deployment,
    ),
)


def _numbers(values: Values, parts: Iterable[str]) -> list[Line]:
    """Return the plan's numbers whose names hold one of the parts."""
    meanings = {} if values.about is None else explained(values.about)
    return [
        Line(_words(name), value, f"plan.json: numbers.{name}", meanings.get(name, ""))
        for name, value in values["plan.json: numbers"].items()
        if any(part in name for part in parts)
    ]


def _moved(values: Values, name: str) -> list[Line]:
    found = values[f"rounds.parquet: fact.{name}"]
    if not found or name in values["plan.json: numbers"]:
        return []
    return [
        Line(f"{_words(name)}, {which}", one, f"rounds.parquet: fact.{name}", NOTES[name].meaning)
        for which, one in (("least", min(found)), ("most", max(found)))
    ]


def _leaves() -> list[dict[str, Any]]:
    """Return each kind of field with its meaning, and the files of a run that can hold some."""
    return [
        {
            "kind": kind,
            "meaning": meaning,
            "files": [name for name in FILES if any((one.file, one.kind) == (name, kind) for one in all_fields())],
        }
        for kind, meaning in KINDS.items()
    ]


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()

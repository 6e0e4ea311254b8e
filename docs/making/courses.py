"""The progress of the strategies' examples, as pictures and sentences, from the table of `docs/make_courses.py`.

A share of 0% is the initial model, 100% the model without privacy.
Pictures are written directly as SVG, which is small and fast.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from making.examples import configuration, example_of
from making.pictures import BLUE, INK, RED
from strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "research" / "results" / "strategies.csv"
COLUMNS = ("example", "round", "median", "least", "most", "auto", "gain", "seeds", "configuration", "userdp")
WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 60, 124, 16, 36
"""Margins round the curves."""
LOWEST, USUAL, HIGHEST = -1.0, -0.15, 1.1
"""Edges: the bottom is the second, or the smallest median after the start if lower, but not below the first."""
LINE = 16
"""The smallest distance of labels, in pixels."""


def configurations() -> dict[str, dict[str, Any]]:
    """Return the configuration of each strategy's example, by name."""
    return {name: configuration(name) for name in STRATEGIES}


def table() -> pd.DataFrame:
    """Return the measurements, a row for each round in the pictures."""
    return pd.read_csv(MEASURED) if MEASURED.is_file() else pd.DataFrame(columns=list(COLUMNS))


def picture_of(name: str) -> str:
    """Return the path of an example's picture."""
    return f"docs/pictures/strategy-{name}.svg"


def pictures() -> dict[str, str]:
    """Return the SVG of each measured example, by its path in the repository."""
    found = {str(name): rows for name, rows in table().groupby("example", sort=False)}
    return {picture_of(name): _svg(found[name]) for name in STRATEGIES if name in found}


def sentence(name: str) -> str:
    """Return the picture of a strategy's example with its description; empty if not measured."""
    rows = table()
    rows = rows[rows["example"] == name]
    if rows.empty:
        return ""
    last, privacy = rows.iloc[-1], configuration(name)["privacy"]
    promise = f"epsilon = {privacy['epsilon']:g} for one whole {privacy['unit']}".replace("whole sample", "sample")
    beside = f"; `auto`, for one whole user, closes {_percent(last['auto'])}" if name != "auto" else ""
    text = (
        f"This run learns {example_of(name).told}, with {promise if name != 'non_private' else 'no privacy'}. "
        f"{_ended(last)}{beside}. 0% is the initial model, 100% training without privacy. The line is the median of "
        f"{int(last['seeds'])} seeds, the band their range. This is one small, easy problem and does not rank "
        "strategies. `python docs/make_courses.py` makes the table, `research/results/strategies.csv`."
    )
    words = f"Share of the gap closed between the initial model and training without privacy, by round of {name}"
    return f"![{words}](../pictures/strategy-{name}.svg)\n\n{fill(text)}\n"


def fill(text: str) -> str:
    """Wrap a text to lines of 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _ended(last: pd.Series) -> str:
    reached = f"{_percent(last['median'])} of the gap ({_percent(last['least'])} to {_percent(last['most'])})"
    return f"It closes {reached}" if last["median"] > 0 else f"It ends worse than it began: it closes {reached}"


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}%".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class _Frame:
    """The coordinates of a chart.

    Attributes:
        floor: The share at the bottom.
        rounds: The number of rounds at the right edge.
    """

    floor: float
    rounds: int

    def height(self, share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (HIGHEST - share) / (HIGHEST - self.floor)

    def held(self, share: float) -> float:
        """Return the share, limited to the edges."""
        return min(max(share, self.floor), HIGHEST)

    def points(self, rounds: Iterable[int], shares: Iterable[float]) -> str:
        across = (WIDTH - LEFT - RIGHT) / self.rounds
        return " ".join(
            f"{_number(LEFT + across * one)},{_number(self.height(share))}"
            for one, share in zip(rounds, shares, strict=True)
        )

    def level(self, share: float, colour: str, dashes: str) -> str:
        y = _number(self.height(self.held(share)))
        return f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{colour}" stroke-dasharray="{dashes}"/>'

    def labels(self, levels: dict[str, tuple[float, str]]) -> list[str]:
        """Return names at the right of their levels, moved apart to avoid overlaps."""
        apart = LINE * (HIGHEST - self.floor) / (HEIGHT - TOP - BOTTOM)
        written, above = [], HIGHEST + apart
        for name, (share, colour) in sorted(levels.items(), key=lambda one: one[1][0], reverse=True):
            above = min(self.held(share), above - apart)
            written.append(_text(WIDTH - RIGHT + 6, self.height(above) + 4, name, "start", colour))
        return written


def _svg(rows: pd.DataFrame) -> str:
    """Return the chart of one example, from the rows of the table in the order of rounds."""
    rounds, shares = rows["round"].to_list(), rows["median"].to_list()
    last = rows.iloc[-1]
    beside = {} if last["example"] == "auto" else {"auto": (float(last["auto"]), RED)}
    frame = _Frame(max(LOWEST, min(USUAL, *shares[1:])), rounds[-1])
    band = frame.points([*rounds, *reversed(rounds)], [*rows["least"], *reversed(rows["most"].to_list())])
    ticks = [share for share in (-1.0, -0.5, 0.0, 0.5, 1.0) if share >= frame.floor]
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(_text(LEFT - 6, frame.height(share) + 4, _percent(share, digits=0), "end") for share in ticks),
        *(_text(x, HEIGHT - 20, text, "middle") for x, text in ((LEFT, "0"), (WIDTH - RIGHT, str(rounds[-1])))),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "rounds", "middle"),
        *(frame.level(share, INK, "2 3") for share in (0.0, 1.0)),
        *(frame.level(share, RED, "6 4") for share, _ in beside.values()),
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
        f'<g clip-path="url(#inside)"><polygon points="{band}" fill="{BLUE}" fill-opacity=".18"/>'
        f'<polyline points="{frame.points(rounds, shares)}" fill="none" stroke="{BLUE}" stroke-width="2"/></g>',
        *frame.labels(
            {"without privacy": (1.0, INK), **beside, "this run": (shares[-1], BLUE), "initial model": (0.0, INK)}
        ),
    ]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = f'font-family="sans-serif" font-size="15" fill="{INK}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

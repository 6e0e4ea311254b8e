"""The pictures of docs/concepts.md, drawn from numbers that the packages compute.

Each has paper of its own, so that it can be read on light and on dark pages.
"""

import io
import math
import re
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from making.concepts import DELTA, EPSILON, NOISE, ROUNDS, samplers
from userdp.accounting import Cost, calibrate_noise, epsilon_of

INK, PALE, BLUE, RED = "#1f2328", "#858b94", "#1f5fa8", "#c2410c"
STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "font.family": "sans-serif",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: it can be searched, and is drawn with the fonts of whoever reads
    "svg.hashsalt": "userdp",
    "text.color": INK,
}
_MADE = re.compile(r"\b[mp][0-9a-f]{10}\b")
WIDTH = 5.6
"""Inches, so that text can still be read where a telephone makes the picture fit."""
HELD = (4, 9, 1, 13, 6, 2, 10)
CLIP = 1.0
LENGTHS = (2.2, 0.7, 1.4, 0.9, 0.5, 1.8, 0.8, 2.5, 0.6)


def pictures() -> dict[str, str]:
    """Name of a picture -> SVG."""
    draw = {
        "units": _units,
        "clipping": _clipping,
        "epsilon": _epsilon,
        "cohorts": _cohorts,
        "relations": _relations,
        "composition": _composition,
    }
    with mpl.rc_context(STYLE):
        return {name: svg(drawn()) for name, drawn in draw.items()}


def _units() -> Figure:
    """Users as rows of samples; what a promise covers stands out."""
    figure, axes = _figure(2.2, columns=2)
    user = int(np.argmax(HELD))
    for ax, title, covered in zip(
        axes, ("sample level: one dot", "user level: one whole row"), (1, HELD[user]), strict=True
    ):
        for row, held in enumerate(HELD):
            x = np.arange(held)
            inside = (row == user) & (x < covered)
            ax.scatter(x, np.full(held, -row), s=34, c=np.where(inside, RED, PALE))
        ax.add_patch(Rectangle((-0.5, -user - 0.45), covered, 0.9, fill=False, edgecolor=RED))
        ax.set(title=title, xlabel="samples", ylabel="users", xticks=[], yticks=[], xlim=(-1, max(HELD)))
    return figure


def _clipping() -> Figure:
    """Vectors of users before and after a clip."""
    figure, axes = _figure(2.8, columns=2)
    angles, lengths = 0.7 * np.arange(len(LENGTHS)), np.array(LENGTHS)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    vectors, clipped = (each[:, None] * directions for each in (lengths, np.minimum(lengths, CLIP)))
    colours = np.where(lengths > CLIP, RED, BLUE)
    reach = 1.1 * lengths.max()
    for ax, title, shown in zip(
        axes, ("what users compute", "what leaves their node"), (vectors, clipped), strict=True
    ):
        ax.add_patch(Circle((0, 0), CLIP, facecolor="#eef2f7", edgecolor=INK, linestyle="--"))
        zeros = np.zeros(len(shown))
        ax.quiver(zeros, zeros, *shown.T, color=colours, angles="xy", scale_units="xy", scale=1, width=0.012)
        ax.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.axis("off")
    axes[0].text(-0.75 * CLIP, -0.75 * CLIP, "the clip", ha="right", va="top")
    return figure


def _epsilon() -> Figure:
    """Two laws of a released number, and the mass that the factor e^epsilon does not cover."""
    figure, (ax,) = _figure(3.0)
    shown_delta = 0.02
    noise = calibrate_noise(EPSILON, shown_delta, 1)
    x = np.linspace(-4 * noise, 4 * noise + 1, 400)
    with_you, with_another = (_bell(x, centre, noise) for centre in (0.0, 1.0))
    bound = math.exp(EPSILON) * with_you
    ax.plot(x, with_you, color=BLUE, label="with your data")
    ax.plot(x, with_another, color=RED, label="with somebody else's")
    ax.plot(x, bound, color=BLUE, linestyle=":", label="the first, times e^epsilon")
    ax.fill_between(x, bound, with_another, where=with_another > bound, color=RED, alpha=0.5, label="at most delta")
    ax.set(xlabel="what is released", ylabel="how likely", yticks=[], xticks=[], ylim=(0, 1.4 * with_you.max()))
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _cohorts() -> Figure:
    """The users of each round, drawn by the samplers."""
    users, cohort, rounds = 12, 4, 12
    figure, axes = _figure(4.6, rows=2, columns=2)
    for ax, (name, sampler) in zip(axes, samplers(users, cohort, rounds).items(), strict=True):
        taken = np.zeros((users, rounds))
        for index in range(rounds):
            taken[sampler.cohort(index), index] = 1
        at = np.argwhere(taken)
        ax.scatter(at[:, 1], at[:, 0], marker="s", s=16, color=BLUE)
        ax.set(title=name, xlabel="rounds", xticks=[], yticks=[])
        ax.set(ylabel="users", xlim=(-1, rounds), ylim=(users, -1))
    return figure


def _relations() -> Figure:
    """The distance by which one user can move a sum of clipped vectors."""
    figure, axes = _figure(2.4, columns=2)
    titles = ("added or removed: by one clip", "replaced: by two clips")
    for ax, title, start in zip(axes, titles, (0.0, -CLIP), strict=True):
        ax.add_patch(Circle((0, 0), CLIP, facecolor="#eef2f7", edgecolor=INK, linestyle="--"))
        ax.plot([start, CLIP], [0, 0], color=PALE, zorder=1)
        ax.scatter([start, CLIP], [0, 0], color=[BLUE, RED], zorder=2)
        ax.text(start, -0.15, "before", ha="center", va="top")
        ax.text(CLIP, -0.15, "after", ha="center", va="top")
        ax.set(title=title, xlim=(-1.6, 1.6), ylim=(-1.1, 1.1), aspect="equal")
        ax.axis("off")
    return figure


def _composition() -> Figure:
    """Epsilon by rounds, added up and exact."""
    figure, (ax,) = _figure(3.0)
    one = epsilon_of(Cost(NOISE), 1, DELTA)
    ax.plot(ROUNDS, [rounds * one for rounds in ROUNDS], color=PALE, marker="o", label="epsilons added up")
    exact = [epsilon_of(Cost(NOISE), rounds, DELTA) for rounds in ROUNDS]
    ax.plot(ROUNDS, exact, color=BLUE, marker="o", label=f"exact, at delta = {DELTA:g}")
    ax.set(xlabel="rounds that a user takes part in", ylabel="epsilon", xlim=(0, None), ylim=(0, None))
    ax.legend(loc="upper left")
    return figure


def _figure(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _bell(x: np.ndarray, centre: float, deviation: float) -> np.ndarray:
    return np.exp(-(((x - centre) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


def svg(figure: Figure) -> str:
    """The same text whenever and wherever it is drawn."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # Names that are made from coordinates tell of digits that are not written, which differ between machines.
    names = {name: f"part{place}" for place, name in enumerate(dict.fromkeys(_MADE.findall(file.getvalue())))}
    text = _MADE.sub(lambda found: names[found[0]], file.getvalue())
    # Without spaces at ends of lines, which editors and version control take off.
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"

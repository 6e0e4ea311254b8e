"""Contrasts that WCAG 2.2 AA asks for: 4.5 for text, 3 for the marks of a chart. By arithmetic, so without a browser.

tests/helpers_browser.py measures what a page really shows, where there is Chromium.
"""

import colorsys
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from simulations.comparison import plots as comparison_plots
from simulations.reports import plots

ROOT = Path(__file__).resolve().parents[3]
TEXT, MARK = 4.5, 3.0
TEMPLATES = ROOT / "simulations" / "reports" / "templates"
STYLE = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
WORDS = ("ink", "soft", "good", "bad", "warn")
"""Colours in which reports write; they write on paper and on cards."""
LIGHT, SLATE, SLATE_CODE = "hsl(0, 0%, 100%)", "hsl(225, 15%, 14%)", "hsl(225, 15%, 18%)"
"""Grounds of Material's two schemes."""
SITE = {
    "default": {"default-fg-color--light": [LIGHT]},
    "slate": {
        "code-hl-constant-color": [SLATE_CODE],
        "code-hl-number-color": [SLATE_CODE],
        "default-fg-color--light": [SLATE],
        "typeset-a-color": [SLATE],
    },
}
"""Colours of text that site.css sets, and the grounds on which they stand."""


def colour(text: str) -> np.ndarray:
    """Red, green, blue and opacity, each from 0 to 1, of a colour of CSS or Matplotlib."""
    if not text.startswith(("rgb", "hsl")):
        return np.array([*to_rgb(text), 1.0])
    first, second, third, *opacity = map(float, re.findall(r"[\d.]+", text))
    if text.startswith("rgb"):
        return np.array([first / 255, second / 255, third / 255, *(opacity or [1.0])])
    return np.array([*colorsys.hls_to_rgb(first / 360, third / 100, second / 100), *(opacity or [1.0])])


def over(top: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.array([*(top[:3] * top[3] + below[:3] * (1 - top[3])), 1.0])


def luminance(one: np.ndarray) -> float:
    linear = np.where(one[:3] <= 0.04045, one[:3] / 12.92, ((one[:3] + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: np.ndarray, ground: np.ndarray) -> float:
    least, most = sorted([luminance(over(one, ground)), luminance(ground)])
    return (most + 0.05) / (least + 0.05)


def schemes() -> dict[str, dict[str, np.ndarray]]:
    """Scheme -> variable -> colour, as the templates of reports declare them; others are as in the light."""
    text = "\n".join((TEMPLATES / f"{name}.html.md").read_text(encoding="utf-8") for name in ("base", "card"))
    light, dark, printed = (
        {name: colour(value) for name, value in re.findall(r"--(\w+): (#\w+)", block)}
        for block in re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    )
    return {"light": light, "dark": light | dark, "print": light | printed}


def in_the_dark(one: np.ndarray) -> np.ndarray:
    """A picture's colour as site.css shows it: inverted by 0.88, its hue turned by half a circle, lightened."""
    (share,) = map(float, re.findall(r"invert\(([\d.]+)\) hue-rotate\(180deg\)", STYLE))
    weights = np.array([0.213, 0.715, 0.072])  # of the turn's matrix in the standard of filters
    turned = (2 * np.tile(weights, (3, 1)) - np.eye(3)) @ (one[:3] * (1 - 2 * share) + share)
    return np.array([*np.maximum(np.clip(turned, 0, 1), colour(SLATE)[:3]), 1.0])


def marks(module_of) -> dict[str, set[str]]:
    """Place -> colours of the lines, points and bars that it draws."""
    drawn, papers, speed = (module_of(f"making.{name}") for name in ("pictures", "paper_pictures", "speed"))
    return {
        "reports": {*comparison_plots._COLOURS, *(colour for colour, _ in plots.LEVELS.values())}
        | {plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.GREY},
        "pages": {drawn.INK, drawn.PALE, drawn.BLUE, drawn.RED, *papers.COLOURS, *speed.COLOURS},
    }


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_of_reports_stands_out_from_paper_and_cards(scheme):
    shown = schemes()[scheme]
    assert set(WORDS) | {"paper", "card", "line"} == set(shown)
    seen = {(word, ground): contrast(shown[word], shown[ground]) for word in WORDS for ground in ("paper", "card")}
    assert {pair: value for pair, value in seen.items() if value < TEXT} == {}
    # Cells of a table of errors lie on up to 40 % of the good colour.
    mixed = over(np.array([*shown["good"][:3], 0.4]), shown["paper"])
    assert contrast(shown["ink"], mixed) >= TEXT


def test_templates_take_their_colours_from_the_variables():
    for path in TEMPLATES.glob("*.html.md"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?<!-)\b(?:color|background): ?(?:#\w+|rgba?\(|hsla?\()", text), path.name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_of_reports_stand_out_from_the_paper(scheme, module_of):
    ground = schemes()[scheme]["paper"]
    seen = {one: contrast(colour(one), ground) for one in marks(module_of)["reports"]}
    assert {one: value for one, value in seen.items() if value < MARK} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_of_pages_stand_out_from_the_page(scheme, module_of):
    made, ground = (colour, LIGHT) if scheme == "light" else (lambda one: in_the_dark(colour(one)), SLATE)
    seen = {one: contrast(made(one), colour(ground)) for one in marks(module_of)["pages"]}
    assert {one: value for one, value in seen.items() if value < MARK} == {}


@pytest.mark.parametrize("scheme", SITE)
def test_colours_that_the_site_sets_stand_out_from_their_ground(scheme):
    (block,) = re.findall(rf'^\[data-md-color-scheme="{scheme}"\](?:\[\S+\])? \{{(.*?)^\}}', STYLE, re.M | re.DOTALL)
    declared = dict(re.findall(r"--md-([\w-]+): (.+);", block))
    assert set(declared) == set(SITE[scheme])  # whoever sets another says on which ground it stands
    seen = {
        name: contrast(colour(declared[name]), colour(ground))
        for name, grounds in SITE[scheme].items()
        for ground in grounds
    }
    assert {name: value for name, value in seen.items() if value < TEXT} == {}


@pytest.mark.parametrize(
    ("one", "ground", "expected"),
    [("#000", "#fff", 21.0), ("#888", "#fff", 3.54), ("rgba(0, 0, 0, .5)", "#fff", 3.98), ("#0000ff", "#fff", 8.59)],
)
def test_the_arithmetic_is_that_of_the_standard(one, ground, expected):
    assert contrast(colour(one), colour(ground)) == pytest.approx(expected, abs=0.01)
    assert contrast(colour("hsl(240, 100%, 50%)"), colour(ground)) == pytest.approx(8.59, abs=0.01)

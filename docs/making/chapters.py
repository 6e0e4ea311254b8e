"""The chapters of strategies for a newcomer, with advice for each chapter."""

from dataclasses import dataclass

from strategies import STRATEGIES, Recipe


@dataclass(frozen=True)
class Chapter:
    """Strategies of related families.

    Attributes:
        title: heading and entry of the navigation.
        families: families of strategies, as their classes declare them.
        when: when to use a strategy of the chapter.
    """

    title: str
    families: tuple[str, ...]
    when: str


CHAPTERS = (
    Chapter("Start here", ("auto",), "Use it first: it has no setting to choose."),
    Chapter(
        "Clipping",
        ("clipping", "local", "phases"),
        "Use one if you know the length of users' gradients or updates, or can measure it on public data.",
    ),
    Chapter(
        "Robust means",
        ("robust",),
        "Use one if users are alike, if every round has many of them, and if some may answer dishonestly.",
    ),
    Chapter(
        "Samples",
        ("sample-level",),
        "Use one to protect single samples, or to compare with such methods; protecting a whole user costs far more.",
    ),
    Chapter(
        "Sparse gradients and sparse models",
        ("sparse gradients", "sparse", "output perturbation", "high-dimensional"),
        "Use one if gradients of samples, or the best model itself, have few nonzero entries.",
    ),
    Chapter("Without privacy", ("reference",), "Use it to measure the cost of privacy, never on data to be protected."),
)
_OTHERS = Chapter("Others", (), "Use one if you meet its needs below.")


def chapter_of(strategy: type[Recipe]) -> Chapter:
    """Return the chapter of a strategy's family."""
    return next((one for one in CHAPTERS if strategy.about.family in one.families), _OTHERS)


def chapters() -> list[tuple[Chapter, list[tuple[str, type[Recipe]]]]]:
    """Return every chapter that has strategies, with these by name in the registry's order."""
    found = [
        (chapter, [(name, one) for name, one in STRATEGIES.items() if chapter_of(one) == chapter])
        for chapter in (*CHAPTERS, _OTHERS)
    ]
    return [(chapter, members) for chapter, members in found if members]

"""The strategies in chapters for a newcomer, and when to take one of a chapter."""

from dataclasses import dataclass

from strategies import STRATEGIES, Recipe


@dataclass(frozen=True)
class Chapter:
    """Strategies of related families.

    Attributes:
        title: heading and entry of the navigation.
        families: as the classes declare them.
        when: in which case to take one of them.
    """

    title: str
    families: tuple[str, ...]
    when: str


CHAPTERS = (
    Chapter("Start here", ("auto",), "Take it first: it has no setting to choose."),
    Chapter(
        "Clipping",
        ("clipping", "local"),
        "Take one if you know how long users' gradients or updates are, or have public data to find out on.",
    ),
    Chapter(
        "Robust means",
        ("robust",),
        "Take one if users are alike, many for each round, and some of them may send anything.",
    ),
    Chapter(
        "Samples",
        ("sample-level",),
        "Take one to protect single samples, or to compare with methods that do; a whole user costs far more.",
    ),
    Chapter(
        "Sparse gradients and sparse models",
        ("sparse gradients", "sparse", "output perturbation", "high-dimensional"),
        "Take one if gradients of samples, or the best model itself, have few entries that are not zero.",
    ),
    Chapter("Without privacy", ("reference",), "Take it to measure what privacy costs, never on data to be protected."),
)
_OTHERS = Chapter("Others", (), "Take one if its needs below are yours.")


def chapter_of(strategy: type[Recipe]) -> Chapter:
    """The chapter of a strategy's family."""
    return next((one for one in CHAPTERS if strategy.about.family in one.families), _OTHERS)


def chapters() -> list[tuple[Chapter, list[tuple[str, type[Recipe]]]]]:
    """Every chapter that has strategies, with these by name in the registry's order."""
    found = [
        (chapter, [(name, one) for name, one in STRATEGIES.items() if chapter_of(one) == chapter])
        for chapter in (*CHAPTERS, _OTHERS)
    ]
    return [(chapter, members) for chapter, members in found if members]

"""The users of research/neural.py: writers of digits, roles of plays. As a script: one file for each.

Roles of one play answer each other and are no persons: they stand for users of like sizes. The real texts are read
from the table GerDraCor in the folder USERDP_DATA, the real images from scikit-learn; where one is not there, seeded
numbers of the same sizes take its place, for speed does not depend on what the numbers are.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from neural_models import VOCABULARY, WINDOW
from numpy.typing import NDArray

WRITERS, IMAGES, ROLES, WINDOWS, LEAST_CHARACTERS = 239, 1797, 182, 64, 500
QUICK_USERS, QUICK_WINDOWS = 12, 4
ALPHABET = "\n !\"'(),-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz[]§«»„“…—ÄÖÜßäöüéèàâêôç"
"""Codes 1, 2, ...; every other character is 0."""


@dataclass(frozen=True)
class Users:
    """Samples, user after user.

    Attributes:
        inputs: (N, k) float32 pixels, or int64: one more than the character before each of a window, first 0.
        targets: (N, T) int64: a class, or the characters of a window.
        offsets: (U + 1,) where each user begins.
        source: what they are, for people.
    """

    inputs: NDArray[Any]
    targets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    source: str


def digits(images: Path, rng: np.random.Generator) -> Users:
    """All images, dealt to writers of sizes drawn once: one image each, the others by shares of a gamma law."""
    shares = rng.gamma(2.0, size=WRITERS)
    sizes = 1 + rng.multinomial(IMAGES - WRITERS, shares / shares.sum())
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if images.exists():
        with np.load(images) as file:
            return Users(file["pixels"], file["labels"], offsets, "the digits of scikit-learn")
    pixels = rng.uniform(size=(IMAGES, 64)).astype(np.float32)
    return Users(pixels, rng.integers(10, size=(IMAGES, 1)), offsets, "random images, as many as scikit-learn's digits")


def characters(rng: np.random.Generator) -> Users:
    """Windows of each of the first roles by name that say enough."""
    table = Path(os.environ.get("USERDP_DATA") or Path.home() / ".cache" / "userdp") / "GerDraCor.parquet"
    if table.exists():
        codes, source = [coded(text) for text in spoken(table)], "the roles of GerDraCor"
    else:
        lengths = np.maximum(LEAST_CHARACTERS, rng.lognormal(8.0, 1.0, size=ROLES)).astype(int)
        codes, source = [rng.integers(VOCABULARY, size=length) for length in lengths], "random texts"
    shown = [windows(text) for text in codes]
    together = np.concatenate(shown)
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in shown])])
    return Users(np.pad(together[:, :-1] + 1, ((0, 0), (1, 0))), together, offsets, source)


def spoken(table: Path) -> list[str]:
    """The text of each role."""
    speeches = pd.read_parquet(table, columns=["role", "text"]).astype({"role": "str"})
    lengths = speeches.text.str.len().groupby(speeches.role).sum()
    roles = sorted(lengths.index[lengths >= LEAST_CHARACTERS])[:ROLES]
    chosen = speeches[speeches.role.isin(roles)]
    return chosen.groupby("role").text.agg("\n".join).loc[roles].tolist()


def coded(text: str) -> NDArray[np.int64]:
    """One code a character."""
    places = {character: code for code, character in enumerate(ALPHABET, start=1)}
    return np.array([places.get(character, 0) for character in text], dtype=np.int64)


def windows(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(at most WINDOWS, WINDOW): one after the other."""
    count = min(WINDOWS, len(codes) // WINDOW)
    return codes[: count * WINDOW].reshape(count, WINDOW)


def some(users: Users, count: int, samples: int) -> Users:
    """The first users, with their first samples."""
    sizes = np.minimum(np.diff(users.offsets)[:count], samples)
    kept = np.concatenate([np.arange(first, first + size) for first, size in zip(users.offsets, sizes, strict=False)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Users(users.inputs[kept], users.targets[kept], offsets, users.source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where digits.npz and characters.npz are written")
    parser.add_argument("--images", type=Path, required=True, help="scikit-learn's digits, if the file is there")
    parser.add_argument("--quick", action="store_true", help="few users with few samples")
    arguments = parser.parse_args()
    found = {
        "digits": digits(arguments.images, np.random.default_rng([1, 0])),
        "characters": characters(np.random.default_rng([1, 1])),
    }
    for name, users in found.items():
        chosen = some(users, QUICK_USERS, QUICK_WINDOWS) if arguments.quick else users
        np.savez(arguments.folder / f"{name}.npz", **vars(chosen))


if __name__ == "__main__":
    main()

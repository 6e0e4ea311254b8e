"""The table of chats of language.py: who wrote what in the Ubuntu channel, from a copy of published logs.

    git clone https://github.com/jkkummerfeld/irc-disentanglement
    python research/chats.py irc-disentanglement chats.csv

Kummerfeld and others (2019) publish parts of 173 days with their annotations, under CC BY 4.0. A line of somebody is a
row, in the order of time; spellings of a name with underscores at its end, or other cases, are one person. Names begin
with "@", because a table's reader takes somebody called null for nobody.
"""

import argparse
import re
from pathlib import Path

import pandas as pd

SAID = re.compile(r"\[\d\d:\d\d\] <([^>]+)> (.*\S)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the copy of the repository")
    parser.add_argument("table", type=Path, help="the CSV to write")
    arguments = parser.parse_args()
    parts = [path for part in ("train", "dev", "test") for path in arguments.folder.glob(f"data/{part}/*.raw.txt")]
    rows = [
        (path.name[:10], line, "@" + said[1].strip().lower().rstrip("_"), said[2])
        for path in sorted(parts, key=lambda path: path.name)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if (said := SAID.match(line))
    ]
    table = pd.DataFrame(rows, columns=["day", "line", "person", "text"])
    table = table.drop_duplicates(["day", "line"])[["person", "text"]]  # parts of a day overlap
    table.to_csv(arguments.table, index=False)
    print(f"{table['person'].nunique():,} people, {len(table):,} lines")


if __name__ == "__main__":
    main()

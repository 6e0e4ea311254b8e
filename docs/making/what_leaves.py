"""docs/what-leaves.md, made from the list in the code."""

from simulations.records.released_fields import FIELDS, KINDS

INTRODUCTION = """\
# What leaves a run

Every field of every file that a run, a comparison or `userdp predict` writes, and of what trackers are told, with its
kind. A test looks into every file for fields that are not in this list. The same list decides what is left out of
trackers and of copies for others; [guarantees.md](guarantees.md) says what the guarantee itself is about.

| kind | what it means |
|---|---|
{kinds}

`userdp report DIR --released FOLDER` writes a copy of a run's directory with its public and noised fields, report and
model included, and nothing else: that copy may be handed on. It is refused where nothing is promised, and where seeded
noise, which whoever guesses the seed takes off, protects a table of real people. Trackers are given everything but
private fields.

On the console, `userdp run` shows what result.json holds: it is for the holder of the data. Sentences of errors and
warnings name fields and remedies; those that end a command before a run directory is made, because a table and its
declarations disagree, quote counts of the table. Whoever sees that a run stopped early, and why, learns something that
no epsilon covers: that machines failed, or that a promise could not be kept.

This page is made by `docs/make.py` from `simulations/records/released_fields.py` and the strategies' classes.
"""


def page() -> str:
    """The whole page."""
    kinds = "\n".join(f"| {kind} | {told} |" for kind, told in KINDS.items())
    parts = [INTRODUCTION.format(kinds=kinds)]
    for file in dict.fromkeys(field.file for field in FIELDS):
        own = [field for field in FIELDS if field.file == file]
        rows = [f"| {f'`{one.name}`' if one.name else 'everything'} | {one.kind} | {one.told} |" for one in own]
        parts.append("\n".join([f"## {file}\n", "| field | kind | what it is |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)

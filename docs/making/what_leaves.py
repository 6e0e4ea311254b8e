"""docs/what-leaves.md, made from the lists in the code."""

from collections.abc import Iterable

from simulations.records.log_kinds import LINE_KINDS, PLACES, LogLine
from simulations.records.log_lines import LOG_LINES
from simulations.records.released_fields import KINDS, all_fields
from strategies.wire.message_fields import KNOWLEDGE, MESSAGE_FIELDS

INTRODUCTION = """\
# What leaves a run

Every field of every file that a run, a comparison or `userdp predict` writes, and of what trackers are told, with its
kind; then every field of the [messages](#messages) between server and nodes, and every [line of a log](#logs). A test
looks into every file, and into the messages of every strategy's runs, for fields that are not in these lists; another
finds log lines in the source. The same list decides what is left out of
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

This page is made by `docs/make.py` from `simulations/records/released_fields.py`, `simulations/records/log_lines.py`,
`strategies/wire/message_fields.py` and the strategies' classes. What time and failure tell stands in
[guarantees.md](guarantees.md#time-and-failure).
"""
MESSAGES = """\
## Messages

What the server asks of nodes, and what they answer. Between machines messages travel encrypted where the deployment has
keys ([deployment.md](deployment.md)); who sees the traffic nevertheless sees its times and sizes. Optional fields are
absent where the strategy has no use for them.

| kind | what it means |
|---|---|
{kinds}

A message that fails says so by the kind of its error. Ordinary Flower clients behind a drop-in strategy
([drop-in.md](drop-in.md)) get the model and `server-round`, as from Flower's own FedAvg, and answer with a model, which
is private as `answer.values` is; their metrics are not read.
"""
LOGS = """\
## Logs

Every line that userdp writes through Python's `logging`, with its level and the values that it shows. `userdp`
on the command line shows warnings; Flower's processes have settings of their own, and lines of their
own, which are not listed.

| log | whose it is |
|---|---|
{places}

| kind | what it means |
|---|---|
{kinds}
"""
_TITLES = {"query": "Before the first round", "train": "Each round", "error": "A node that fails"}


def page() -> str:
    """The whole page."""
    kinds = _rows((kind, told) for kind, told in KINDS.items())
    parts = [INTRODUCTION.format(kinds=kinds)]
    for file in dict.fromkeys(field.file for field in all_fields()):
        own = [field for field in all_fields() if field.file == file]
        rows = _rows((f"`{one.name}`" if one.name else "everything", one.kind, one.told) for one in own)
        parts.append(f"## {file}\n\n| field | kind | what it is |\n|---|---|---|\n{rows}\n")
    return "\n".join([*parts, *_messages(), *_logs()])


def _messages() -> list[str]:
    parts = [MESSAGES.format(kinds=_rows(KNOWLEDGE.items()))]
    for message, sender in dict.fromkeys((one.message, one.sender) for one in MESSAGE_FIELDS):
        own = [one for one in MESSAGE_FIELDS if (one.message, one.sender) == (message, sender)]
        way = "server to node" if sender == "server" else "node to server"
        rows = _rows((f"`{one.name}{'*' if one.name.endswith('.') else ''}`", one.kind, one.told) for one in own)
        parts.append(f"### {_TITLES[message]}, {way}\n\n| field | kind | what it is |\n|---|---|---|\n{rows}\n")
    return parts


def _logs() -> list[str]:
    rows = _rows((f"`{one.module}`", one.level, one.place, one.kind, _sentence(one)) for one in LOG_LINES)
    head = "| module | level | log | kind | line |\n|---|---|---|---|---|"
    return [LOGS.format(places=_rows(PLACES.items()), kinds=_rows(LINE_KINDS.items())), f"{head}\n{rows}\n"]


def _sentence(line: LogLine) -> str:
    """The line with what stands for each value in its place."""
    return line.text.replace("%d", "%s") % tuple(f"*[{told}]*" for told in line.values.values())


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

"""docs/what-leaves.md, made from the lists in the code."""

from collections.abc import Iterable

from making.log_lines import LINE_KINDS, LOG_LINES, PLACES, LogLine
from making.message_fields import KNOWLEDGE, MESSAGE_FIELDS
from simulations.records.released_fields import KINDS, all_fields

INTRODUCTION = """\
# What leaves a run

This page lists everything that a run writes, sends or logs, and says of each field who may see it. You need it before
you show a report, a file or a log to anybody who may not see the data. To hand a run on, copy what may be shown:

```
userdp report {directory} --released FOLDER
```

The copy has the public and the noised fields, report and model included, and nothing else. These are the kinds:

| kind | what it means |
|---|---|
{kinds}

An example: of `result.json`, {examples}.

- *Files* of a run, a comparison, `userdp predict` and `userdp export`, and what trackers get:
  [from config.toml on](#configtoml).
- *Messages* between server and nodes: [messages](#messages).
- *Lines of logs*: [logs](#logs).
- What the guarantee itself is about: [guarantees](guarantees.md). What time and failure tell:
  [time and failure](guarantees.md#time-and-failure).

## What holds of all of them

- A test looks into every file, and into the messages of every strategy's runs, for fields that are not listed here;
  another one finds log lines in the source.
- `--released` is refused where nothing is promised, and where seeded noise protects a table of real people: whoever
  guesses the seed takes that noise off.
- Trackers are given everything but private fields.
- The console shows what result.json holds, for the holder of the data.
- Sentences of errors and warnings name fields and remedies. Those that end a command before a run directory is made,
  because a table and its declarations disagree, quote counts of the table.
- Whoever sees that a run stopped early, and why, learns something that no epsilon covers: that machines failed, or that
  a promise could not be kept.

This page is made by `docs/make.py` from `simulations/records/released_fields.toml`,
`docs/making/log_lines.toml`, `docs/making/message_fields.py` and the strategies' classes.
"""
SHOWN = ("users", "metrics", "reference_private.non_private", "seconds")
"""Fields of result.json that stand for their kinds at the top."""
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
is private as `answer.values` is; their metrics are not read. With the mod `private_updates` and `trust="sum"` they get
the computation and the keys below as well, and answer as nodes with masked sums do. Held-out clients answer an
evaluation with metrics, which are private for the server too, and what it releases of them is noised.
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
    parts = [INTRODUCTION.format(kinds=kinds, examples=_examples(), directory="runs/quickstart-auto-seed1")]
    for file in dict.fromkeys(field.file for field in all_fields()):
        own = [field for field in all_fields() if field.file == file]
        rows = _rows((f"`{one.name}`" if one.name else "everything", one.kind, one.told) for one in own)
        parts.append(f"## {file}\n\n| field | kind | what it is |\n|---|---|---|\n{rows}\n")
    return "\n".join([*parts, *_messages(), *_logs()])


def _examples() -> str:
    """Some fields of result.json, with their kinds."""
    found = {one.name: one.kind for one in all_fields() if one.file == "result.json"}
    return ", ".join(f"`{name}` is {found[name]}" for name in SHOWN)


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

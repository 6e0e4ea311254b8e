"""The section of research/README.md on the cost of neural models, from the measurements of research/neural.py."""

import json
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "neural.json"
MODELS = {
    "perceptron": "perceptron 64-32-10",
    "embedding": "embedding and perceptron",
    "gru": "`nn.GRU` 64-128",
    "lstm": "`nn.LSTM` 64-64",
    "written_gru": "GRU as a Python loop 64-128",
    "transformer": "transformer layer 64-128",
}
TOOLS = ("loop", "pfl", "flower", "ours")
HEAD = ("model", "loop", "pfl", "Flower", "ours", "ours / faster", "MiB: loop", "pfl", "ours")
PROMISED = 0.9
Rows = dict[str, dict[str, dict[str, Any]]]


def section() -> str:
    """Return the method, the table, and the models within the limit."""
    report = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows: Rows = {}
    for row in report["rows"]:
        rows.setdefault(row["model"], {})[row["tool"]] = row
    table = [
        f"| {' | '.join(HEAD)} |",
        f"|{'---|' * len(HEAD)}",
        *(_line(model, rows.get(model, {})) for model in MODELS),
    ]
    texts = _introduction(report), _verdict(rows)
    told = [textwrap.fill(one, 120, break_on_hyphens=False) for one in texts]
    return "\n\n".join([told[0], "\n".join(table), told[1]])


def _introduction(report: dict[str, Any]) -> str:
    settings, versions = report["settings"], report["versions"]
    threads, rounds = settings["threads"], settings["rounds"]
    differences = [row["difference"] for row in report["rows"] if row["difference"] is not None]
    threads = "each tool's own number of threads" if threads is None else f"threads: {threads} each"
    return (
        f"Local training of neural models (`neural.py`, {threads}; seconds of processor time per round, median of "
        f"{rounds}; {settings['cores']} cores, torch {versions['torch']}, pfl {versions['pfl']}; {settings['digits']}; "
        f"{settings['characters']}, windows of 32 characters; sums equal to {max(differences):.0e}, relative):"
    )


def _line(model: str, rows: dict[str, dict[str, Any]]) -> str:
    """Return a row of the table; bold marks a ratio above the limit."""
    seconds = {tool: median(row["seconds"]) for tool, row in rows.items() if row["seconds"]}
    cells = [
        MODELS[model],
        *(f"{seconds[tool]:.3g}" if tool in seconds else "" for tool in TOOLS),
        _shown(_ratio(seconds)),
    ]
    cells += [f"{rows[tool]['peak_mib']:.0f}" if tool in seconds else "" for tool in ("loop", "pfl", "ours")]
    return f"| {' | '.join(cells)} |"


def _ratio(seconds: dict[str, float]) -> float | None:
    """Return our time over that of the faster of loop and pfl; None if not measured."""
    if not {"loop", "pfl", "ours"} <= seconds.keys():
        return None
    return seconds["ours"] / min(seconds["loop"], seconds["pfl"])


def _shown(ratio: float | None) -> str:
    if ratio is None:
        return "not measured"
    return f"{ratio:.2f}" if ratio <= PROMISED else f"**{ratio:.2f}**"


def _verdict(rows: Rows) -> str:
    ratios = {}
    for model, of_tools in rows.items():
        ratios[model] = _ratio({tool: median(row["seconds"]) for tool, row in of_tools.items() if row["seconds"]})
    kept = [model for model, ratio in ratios.items() if ratio is not None and ratio <= PROMISED]
    behind = [model for model, ratio in ratios.items() if ratio is not None and ratio > PROMISED]
    count = len(kept) + len(behind)
    told = f"Measured models: {count}; within {PROMISED} of the time of the faster of loop and pfl: {len(kept)}"
    return f"{told}{'; not ' + ', '.join(behind) if behind else ''}. Flower's memory is the sum over its processes."

"""The table of docs/language.md, from research/results/language.csv, which research/language.py measures."""

import textwrap
from pathlib import Path

import pandas as pd

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "language.csv"
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DATA = {
    "roles": "**Roles of German plays**, after a base that has read German prose (`research/pretrain.py base`).",
    "chats": "**People in the Ubuntu channel** (`research/chats.py`), after a base that has read Python's enhancement "
    "proposals (`research/pretrain.py base --text FILE`), with the settings of the roles.",
}
"""Data set -> what it is."""
ROWS = {
    ("trivial", "trivial"): "how often each byte is used, nothing else",
    ("pretrained", "none"): "the model before fine-tuning",
    ("lora", "non_private"): "LoRA, no privacy",
    ("lora", "uls"): "LoRA, users clipped",
    ("lora", "uls_replaced"): "the same, when a user is replaced",
    ("lora", "uls_sgd"): "LoRA, users clipped, plain steps",
    ("lora", "els"): "LoRA, windows clipped, plain steps",
    ("full", "uls"): "the whole model, users clipped",
    ("full", "els"): "the whole model, windows clipped, plain steps",
    ("scratch", "uls"): "from random weights, users clipped",
    ("scratch", "els"): "from random weights, windows clipped, plain steps",
}
"""(model, strategy) -> what it is called, in the order of the page."""


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds: bits, and the share of the way from the model before fine-tuning to no privacy.

    A row a model, strategy and epsilon: ``bits``, ``spread`` (standard deviation over seeds), ``share``, ``seeds``. The
    share compares runs of one seed, which hold out the same users; it is negative where fine-tuning does harm, and
    where training from random weights ends above the model that has read public text.
    """
    good = table[table["error"].isna()]
    ends = good[good["strategy"] == "non_private"].set_index("seed")[["initial", "bits"]]
    joined = good.join(ends.rename(columns={"initial": "from", "bits": "to"}), on="seed")
    joined["share"] = (joined["from"] - joined["bits"]) / (joined["from"] - joined["to"])
    before = ends.reset_index().assign(model="pretrained", strategy="none", epsilon=0.0, share=0.0)
    everything = pd.concat([joined, before.drop(columns="bits").rename(columns={"initial": "bits"})])
    grouped = everything.groupby(["model", "strategy", "epsilon"])
    parts = {"bits": grouped["bits"].mean(), "spread": grouped["bits"].std(), "share": grouped["share"].mean()}
    return pd.DataFrame(parts | {"seeds": grouped["seed"].nunique()}).reset_index()


def markdown(table: pd.DataFrame) -> str:
    """Return the summary as a table: a row a model and strategy, a column a budget."""
    means = summary(table).set_index(["model", "strategy", "epsilon"])
    cells = {index: _shown(*one) for index, one in zip(means.index, means.to_numpy(), strict=True)}
    budgets = ["no privacy", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    lines = [f"| | {' | '.join(budgets)} |", "|---" * (1 + len(budgets)) + "|"]
    for (model, strategy), name in ROWS.items():
        shown = [cells.get((model, strategy, epsilon), "") for epsilon in (0.0, *EPSILONS)]
        if any(shown):
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _shown(bits: float, spread: float, share: float, seeds: float) -> str:
    told = f"{bits:.3f}" + (f" ± {spread:.3f}" if seeds > 1 else "")
    return told if pd.isna(share) else f"{told} ({100 * share:.0f} %)"


def section() -> str:
    """Return a table a data set, and how they were made."""
    table = pd.read_csv(MEASURED)
    good = table[table["error"].isna()]
    parts = [_part(told, table[table["data"] == data]) for data, told in DATA.items() if (good["data"] == data).any()]
    text = (
        "Bits a byte on held-out users, as a mean over seeds with its standard deviation, and in brackets how far that "
        "is on the way from the model before fine-tuning to LoRA without privacy, of the same seed. A cell without a "
        "deviation has one seed. Each seed holds out other people, so compare what is in brackets. "
        f"{good['seconds'].sum() / 3600:.1f} hours in all on a busy core; all rows and settings are in "
        "research/results/language.csv."
    )
    return "\n\n".join([*parts, textwrap.fill(text, 120)])


def _part(told: str, table: pd.DataFrame) -> str:
    runs = table[table["error"].isna() & (table["strategy"] == "uls")]
    users, held_out = (int(runs[name].median()) for name in ("users", "held_out"))
    seeds = sorted(runs["seed"].unique())
    count = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed, too few to tell small differences"
    about = textwrap.fill(f"{told} {users:,} of them, {held_out:,} others held out; {count}.", 120)
    return f"{about}\n\n{markdown(table)}"

"""The table of docs/own-model.md, and its configuration beside it."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd

CONFIGS = Path(__file__).resolve().parents[1] / "simulations" / "configs"
SONGS = 20


def write_songs(folder: Path, listeners: int = 600, heard: int = 40) -> Path:
    """songs.csv: everybody hears the song after the last one, mostly; returns its path."""
    rng = np.random.default_rng(0)
    jumps = np.where(rng.random((listeners, heard)) < 0.8, 1, rng.integers(0, SONGS, (listeners, heard)))
    songs = (rng.integers(0, SONGS, (listeners, 1)) + np.cumsum(jumps, axis=1)) % SONGS
    table = pd.DataFrame(
        {
            "listener": np.repeat([f"listener{number}" for number in range(listeners)], heard),
            "time": np.tile(np.arange(heard), listeners),
            "song": songs.ravel(),
        }
    )
    path = folder / "songs.csv"
    table.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def beside(folder: Path, **songs: int) -> Path:
    """The configuration, its module and its table in a folder; returns the configuration's path."""
    for name in ("own-model.toml", "own_model.py"):
        shutil.copy(CONFIGS / name, folder)
    write_songs(folder, **songs)
    return folder / "own-model.toml"

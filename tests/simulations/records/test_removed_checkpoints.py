"""Checkpoints of a run that has ended are removed, wherever that is interrupted."""

from pathlib import Path

from simulations.records.checkpoints import remove_checkpoints
from simulations.records.run_directory import ASKED, CHECKPOINT


def test_checkpoints_are_removed_with_the_checkpoint_last(tmp_path, monkeypatch):
    """A kill in between leaves what says that there is something left to remove."""
    for name in (ASKED, CHECKPOINT, f".{ASKED}.partial"):
        (tmp_path / name).touch()
    left = []
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path, **more: left.append({*map(str, tmp_path.iterdir())}) or unlink(path, **more)
    )
    remove_checkpoints(tmp_path)
    assert all(str(tmp_path / CHECKPOINT) in names for names in left)
    assert list(tmp_path.iterdir()) == []

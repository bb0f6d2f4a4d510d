"""What tests of resumed runs share."""

from __future__ import annotations

from pathlib import Path

from codingrate.runs.folder import checkpoints

from .toys import assert_same, measured, saved

FIVE = {"run.checkpoint_steps": 5}
"""A checkpoint every five steps."""


class StoppedError(Exception):
    """Stands for a kill within one process."""


def names(folder: Path) -> list[str]:
    """Return the names of the complete checkpoints of a run, the oldest first."""
    return [path.name for path in checkpoints(folder / "checkpoints")]


def assert_same_run(folder: Path, whole: Path) -> None:
    """Check that the models and the metrics of two runs are equal, bit for bit."""
    assert_same(saved(folder), saved(whole))
    assert_same(saved(folder, "best"), saved(whole, "best"))
    assert measured(folder) == measured(whole)

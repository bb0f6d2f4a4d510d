"""The notebooks in examples run, and what they keep is small."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.event_loops import _no_event_loop_is_left  # noqa: F401  (an autouse fixture)

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_three_small_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["objective", "tour", "train_and_inspect"]
    for path in NOTEBOOKS:
        assert path.stat().st_size < 100_000
        absolute = re.search(r"(?<![\w.:/<])/(?:[\w.-]+/){2,}", path.read_text(encoding="utf-8"))
        assert absolute is None, "a path of the machine that ran the notebook"


def test_the_space_is_one_file_that_serves_the_explorer():
    code = compile((EXAMPLES / "space" / "app.py").read_text(encoding="utf-8"), "app.py", "exec")
    assert "launch" in code.co_names


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of the kernel's own packages
def test_notebooks_run(path, tmp_path):
    """EXECUTED_NOTEBOOKS names a folder to write them to, with their outputs."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute(env=environment))  # `execute` leaves its event loop open
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    if folder := os.environ.get("EXECUTED_NOTEBOOKS"):
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times
        nbformat.write(notebook, Path(folder) / path.name)

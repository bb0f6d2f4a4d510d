"""One run folder, one process: the lock of a folder, and simultaneous starts."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys

import pytest

from codingrate.errors import CrateError
from codingrate.recipes import load_recipe
from codingrate.runs import Run
from codingrate.runs.lock import LOCK, folder_lock
from tests.refusals import refused

from .toys import ENVIRONMENT, toy, train_toy

FORK = multiprocessing.get_context("fork")
TOGETHER = FORK.Barrier(2)


def start_and_hold(folder):
    """Start a run when another process does, and hold it until both have tried; return who holds it, or the refusal."""
    TOGETHER.wait()
    try:
        run, _ = Run.start(folder, load_recipe("digits"))
    except CrateError as error:
        TOGETHER.wait()
        return str(error)
    TOGETHER.wait()
    run.write_recipe()
    run.lock.close()
    return f"process {os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_of_simultaneous_starts_exactly_one_wins(tmp_path, count):
    with FORK.Pool(2) as pool:
        for number in range(count):
            folder = tmp_path / str(number)
            holder, refusal = sorted(pool.map(start_and_hold, [folder] * 2, chunksize=1), key=len)
            assert refusal.startswith(f"{folder}: {holder} ")
            assert Run(folder).recipe.data.name == "digits"


def test_the_lock_leaves_nothing_behind(tmp_path):
    for existing in (False, True):
        with folder_lock(tmp_path / "run"):
            line = refused(f"process {os.getpid()} on", Run.start, tmp_path / "run", toy())
            assert (tmp_path / "run" / LOCK).is_file()
        assert line.startswith(f"{tmp_path / 'run'}: ")
        assert [*tmp_path.rglob("*")] == ([tmp_path / "run"] if existing else [])
        (tmp_path / "run").mkdir(exist_ok=True)
    run = train_toy(tmp_path / "run", {"schedule.steps": 1})
    assert not (run.folder / LOCK).exists()


def test_a_killed_holder_gives_the_lock_free(tmp_path):
    program = "from pathlib import Path; import sys; from codingrate.runs.lock import folder_lock\n"
    program += "with folder_lock(Path(sys.argv[1])):\n    print('locked', flush=True); input()"
    call = [sys.executable, "-c", program, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, env=ENVIRONMENT, **pipes) as holder:
        assert holder.stdout.readline() == "locked\n"
        refused(f"process {holder.pid} on", Run.start, tmp_path / "run", toy())
        holder.kill()
    assert (tmp_path / "run" / LOCK).is_file(), "the file is still there"
    assert Run.start(tmp_path / "run", toy())[1] is None


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    """A loader worker lives on for seconds after its run was killed."""
    with folder_lock(tmp_path / "run"):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
    with folder_lock(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).is_file()
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "file")
    for name in ("file", "run"):
        refused(str(tmp_path / name), Run.start, tmp_path / name, toy())
    assert (tmp_path / "file").read_text() == "text"

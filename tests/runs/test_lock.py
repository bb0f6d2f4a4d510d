"""One run folder, one process: the lock of a folder, and simultaneous starts."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from codingrate.errors import CrateError
from codingrate.recipes import load_recipe, save_recipe
from codingrate.runs import Run
from codingrate.runs.lock import LOCK, folder_lock
from tests.cli.conftest import check_refusal
from tests.refusals import refused

from .toys import ENVIRONMENT, toy, train_toy


def start_and_hold(connection):
    """Start a run in every folder that comes, and hold it until the next message; answer with the outcome."""
    while (folder := connection.recv()) is not None:
        try:
            run, _ = Run.start(folder, load_recipe("digits"))
        except CrateError as error:
            connection.send(str(error))
            connection.recv()
            continue
        connection.send("won")
        connection.recv()
        run.write_recipe()
        run.lock.close()


@pytest.fixture(scope="module")
def starters():
    """Two processes that start runs when they are told, each with a connection to it."""
    context, started = multiprocessing.get_context("fork"), []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=start_and_hold, args=(theirs,))
        process.start()
        theirs.close()
        started.append((process, ours))
    yield started
    for process, connection in started:
        connection.send(None)
        process.join(30)
        assert process.exitcode == 0
        connection.close()


def tell(processes, message):
    for _, connection in processes:
        connection.send(message)


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_of_simultaneous_starts_exactly_one_wins(starters, tmp_path, count):
    for number in range(count):
        folder = tmp_path / str(number)
        tell(starters, folder)
        answers = [connection.recv() for _, connection in starters]
        winner, _ = starters[answers.index("won")]
        (line,) = [answer for answer in answers if answer != "won"]
        holder = f"process {winner.pid} on {socket.gethostname()}"
        assert line == f"{folder}: {holder} is training in this folder; wait for it or use another --output"
        assert (folder / LOCK).read_text() == holder
        tell(starters, "go on")
    answers = [Run(tmp_path / str(number)).recipe.data.name for number in range(count - 1)]
    assert answers == ["digits"] * (count - 1)


def test_the_lock_leaves_nothing_behind(tmp_path):
    with folder_lock(tmp_path / "run"):
        line = refused(f"process {os.getpid()} on", Run.start, tmp_path / "run", toy())
        assert (tmp_path / "run" / LOCK).is_file()
    assert re.match(rf"{re.escape(str(tmp_path / 'run'))}: process \d+ on ", line)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with folder_lock(tmp_path / "run"):
        pass
    assert [*(tmp_path / "run").iterdir()] == []


def test_a_trained_run_is_not_locked(tmp_path):
    run = train_toy(tmp_path / "run", {"schedule.steps": 1})
    assert not (tmp_path / "run" / LOCK).exists()
    assert run.metrics["loss"] > 0
    train_toy(tmp_path / "run", {"schedule.steps": 1}, resume=True)


def test_a_killed_holder_gives_the_lock_free(tmp_path):
    program = "from pathlib import Path; import sys, time; from codingrate.runs.lock import folder_lock\n"
    program += "with folder_lock(Path(sys.argv[1])):\n    print('locked', flush=True); time.sleep(60)"
    options = {"stdout": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run")], **options)
    assert holder.stdout.readline() == "locked\n"
    refused(f"process {holder.pid} on", Run.start, tmp_path / "run", toy())
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
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


def test_the_command_says_who_trains(tmp_path, capsys):
    save_recipe(toy(), tmp_path / "toy.yaml")
    with folder_lock(tmp_path / "run"):
        call = ["train", tmp_path / "toy.yaml", "--output", tmp_path / "run"]
        check_refusal(capsys, call, 1, f"process {os.getpid()} on")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("text")
    refused("is a file; use another --output", Run.start, tmp_path / "file", toy())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "file")
    refused("cannot write", Run.start, tmp_path / "run", toy())
    assert (tmp_path / "file").read_text() == "text"

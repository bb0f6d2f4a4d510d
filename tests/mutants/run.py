"""Apply every mutant in a copy of the tree, run the tests that must find it, and print a table by room.

    python -m tests.mutants.run                       # all of them, one after another
    python -m tests.mutants.run --room data --write docs/mutants.md

Libraries are imported once, and every mutant runs in a fork of this process, which imports the package anew. Before
that the tests of each mutant must pass on the code as it is; otherwise their failure would say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from .mutant import Mutant
from .rooms import FIRST, ROOMS

ROOT = Path(__file__).parents[2]
LIBRARIES = ("datasets", "kornia", "matplotlib.figure", "pandas", "pytest", "sklearn.linear_model")
LIBRARIES += ("scipy.stats", "torch", "transformers", "transformers.trainer", "typer")
CPU_LIMIT, LIMIT = 300, 3600
"""Seconds of CPU time and of wall-clock time after which tests count as hanging, which is a failure."""
KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"


def run_tests(tree: Path, tests: str) -> str:
    """Run tests of a tree in a fork; return whether they failed, passed, or could not be run."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT))
        code = 4  # as pytest's for tests that cannot be run
        try:
            code = _test(tree, tests)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: SURVIVED, 4: INVALID, 5: INVALID}.get(code, KILLED)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return KILLED


def _test(tree: Path, tests: str) -> int:
    import pytest

    os.chdir(tree)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "codingrate")]:
        del sys.modules[name]
    sys.path[:0] = [str(tree / "src"), str(tree)]
    os.environ["PYTHONPATH"] = str(tree / "src")
    silence = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import codingrate

    assert Path(codingrate.__file__).is_relative_to(tree)
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported
    return int(pytest.main(["-x", *quiet, "-m", "not slow", *tests.split()]))


@contextlib.contextmanager
def changed(path: Path, old: str, new: str) -> Iterator[None]:
    """Replace a text of a file for a while; the time of the file changes with it, so that no old bytecode is used."""
    text, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def table(results: dict[str, list[tuple[Mutant, str]]]) -> str:
    """Return the results as Markdown: a row per room, then the mutants that no test finds."""
    lines = ["| room | mutants | killed at first | killed now | share |", "|---|---|---|---|---|"]
    counts = {room: (len(rows), sum(result == KILLED for _, result in rows)) for room, rows in results.items()}
    firsts = {room: FIRST[room] if tried == len(ROOMS[room]) else None for room, (tried, _) in counts.items()}
    firsts["all"] = None if None in firsts.values() else sum(firsts.values())  # unknown for a part of a room
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    for room, (tried, killed) in {**counts, "all": tuple(total)}.items():
        first = "" if firsts[room] is None else firsts[room]
        lines.append(f"| {room} | {tried} | {first} | {killed} | {killed / tried:.1%} |")
    alive = [(m, result) for rows in results.values() for m, result in rows if result != KILLED]
    lines += ["", f"Survivors: {len(alive) or 'none'}.", ""]
    for mutant, result in alive:
        old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
        lines.append(f"- `{mutant.file}` ({result}): `{old}` → `{new}`. {mutant.survives or 'Not explained yet.'}")
    return "\n".join(lines).rstrip() + "\n"


def write(path: Path, text: str) -> None:
    """Put a table into a page, between the two comments that mark its place."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition("<!-- table -->\n")
    after = rest.partition("<!-- end of table -->\n")[2]
    path.write_text(f"{before}<!-- table -->\n{text}<!-- end of table -->\n{after}", encoding="utf-8")


def main() -> int:
    """Run the mutants that the arguments choose; the exit code is 1 if less than 95 % of them are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", action="append", choices=ROOMS, help="room to test; default: all")
    parser.add_argument("--only", action="append", help="text that the file or the old text of a mutant must contain")
    parser.add_argument("--write", type=Path, help="page to put the table into")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    wanted = options.only or [""]
    chosen = {
        room: [m for m in ROOMS[room] if any(text in f"{m.file} {m.old}" for text in wanted)]
        for room in options.room or ROOMS
    }
    for library in LIBRARIES:
        __import__(library)
    results: dict[str, list[tuple[Mutant, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        for name in ("src", "tests", "docs"):
            shutil.copytree(ROOT / name, tree / name)
        for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "LICENSE"):
            shutil.copy2(ROOT / name, tree / name)
        sound: set[str] = set()  # tests that pass without any mutant
        for room, rows in chosen.items():
            results[room] = []
            for mutant in rows:
                if mutant.tests not in sound and run_tests(tree, mutant.tests) != SURVIVED:
                    print(f"the tests fail without any mutant: {mutant.tests}", file=sys.stderr)
                    return 2
                sound.add(mutant.tests)
                start = time.monotonic()
                with changed(tree / "src" / "codingrate" / mutant.file, mutant.old, mutant.new):
                    result = run_tests(tree, mutant.tests)
                results[room].append((mutant, result))
                shown = " ".join(mutant.old.split())[:70]
                print(f"{time.monotonic() - start:6.1f} s  {result:8}  {mutant.file}: {shown}", flush=True)
    text = table({room: rows for room, rows in results.items() if rows})
    print(text)
    if options.write:
        write(options.write, text)
    pairs = [result for rows in results.values() for _, result in rows]
    return int(pairs.count(KILLED) < 0.95 * len(pairs))


if __name__ == "__main__":
    sys.exit(main())

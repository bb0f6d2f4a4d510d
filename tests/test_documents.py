"""Every Python and shell block of README and docs runs, unless its fence says `skip`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    skip: bool
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        assert words in ([], ["skip"]), f"{page.name}: unknown words after the fence: {match['info']}"
        found.append(Block(language, bool(words), match["code"], text.count("\n", 0, match.start()) + 1))
    return found


def script(page: Path) -> str:
    """The runnable blocks of a page as one Python program, so that later blocks see the names of earlier ones."""
    parts = ["import subprocess"]
    for block in blocks(page):
        if block.skip or block.language not in ("python", "shell"):
            continue
        parts.append(f"print('{page.name}, line {block.line}', flush=True)")
        if block.language == "python":
            parts.append(block.code)
        else:
            parts.append(f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {block.code!r}], check=True)")
    return "\n".join(parts)


def test_blocks_that_cannot_run_are_marked_and_few():
    kinds = {"python": 0, "shell": 0, "skip": 0}
    for page in PAGES:
        for block in blocks(page):
            assert block.language in ("", "python", "shell", "yaml", "json", "text"), f"{page.name}: {block.language}"
            assert block.language or "crate " not in block.code, (
                f"{page.name}, line {block.line}: a command needs a fence"
            )
            if block.language in ("python", "shell"):
                kinds["skip" if block.skip else block.language] += 1
    print(kinds)
    assert kinds["python"] >= 5
    assert kinds["shell"] >= 3


RESULTS = {  # pages with measured results, and the sections that hold their tables
    "language.md": ["Positions and a metric inside the subspace", "Measured results", "Sentences: what was tried"],
    "results.md": [
        "Summary", "1. Accuracy beside a black box", "2. Accuracy and size", "3. Which form of the two blocks",
        "4. The settings of ISTA", "5. Compression over layers", "6. Sparsity over layers", "7. Attention compresses",
        "8. Learning without labels", "9. Language", "10. Segmentation", "The shipped classifier", "Step size",
        "Digits",
    ],
    "self-supervised.md": ["CIFAR-10", "Digits"],
}  # fmt: skip


@pytest.mark.parametrize("page", RESULTS)
def test_results_state_their_command_version_and_seed(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    measured = [title for title, part in sections.items() if re.search(r"^\|.*\d\.\d", part, re.MULTILINE)]
    assert measured == RESULTS[page]
    for title in measured:
        for fact in (r"\bcrate (study|train|evaluate|probe|inspect) ", r"codingrate \d+\.\d+\.\d+", r"\b[Ss]eeds? \d"):
            assert re.search(fact, sections[title]), f"{page}, {title}: there is no {fact}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path):
    """Blocks run in order in an empty folder, offline, with `crate` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-3000:]}"

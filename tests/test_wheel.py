"""A wheel, built and installed in a fresh environment: the console script, recipes, weights and pages are in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
from pathlib import Path
import codingrate
from codingrate.models.pretrained import pretrained_names
from codingrate.recipes import load_recipe, recipe_names, study_names
print(Path(codingrate.__file__).parent)
print(len([load_recipe(name) for name in recipe_names()]), len(study_names()), len(pretrained_names()))
print((Path(codingrate.__file__).parent / "py.typed").is_file())
print((Path(codingrate.__file__).parent / "templates" / "theory.html").is_file())
"""


def run(*arguments, cwd, **changes):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **changes}
    done = subprocess.run(
        list(map(str, arguments)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel from a copy of the sources and install it alone; libraries are those of this environment."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", place / "tree" / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, place / "tree" / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, place / "tree", cwd=place)
    (wheel,) = place.glob("codingrate-*.whl")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin"


@pytest.mark.slow
def test_the_wheel_has_everything_and_the_console_script_works(installed, tmp_path):
    folder, counts, *files = run(installed / "python", "-c", PROGRAM, cwd=tmp_path).splitlines()
    assert Path(folder).is_relative_to(installed.parent)
    package = ROOT / "src" / "codingrate"
    shipped = [
        package.glob(pattern) for pattern in ("recipes/*.yaml", "recipes/studies/*.yaml", "weights/*/recipe.yaml")
    ]
    assert counts.split() == [str(len(list(names))) for names in shipped]
    assert files == ["True", "True"]
    assert "0.1" in run(installed / "crate", "--version", cwd=tmp_path)
    assert "neumann-order" in run(installed / "crate", "verify", "--claim", "neumann-order", cwd=tmp_path)
    quick = ("schedule.steps=2", "run.layerwise_epochs=0", "--output", "run")
    run(installed / "crate", "train", "digits", *quick, cwd=tmp_path)
    assert (tmp_path / "run" / "model" / "last" / "model.safetensors").is_file()

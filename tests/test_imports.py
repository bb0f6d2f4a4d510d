"""Importing the package costs next to nothing, and its names are there when asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import codingrate

HEAVY = ("torch", "transformers", "numpy", "sklearn", "PIL", "pydantic", "datasets")


def loaded_after(code):
    """Return the heavy packages that a fresh process has loaded after running the code."""
    script = f"{code}\nimport sys\nprint('loaded', *(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import codingrate") == []


def test_listing_models_needs_neither_torch_nor_transformers():
    code = "import codingrate\nassert 'crate-tiny-patch16-224' in codingrate.list_models('crate-*')"
    assert loaded_after(code) == []


def test_listing_recipes_needs_neither_torch_nor_transformers():
    loaded = loaded_after("from codingrate import recipes\nassert 'digits' in recipes.recipe_names()")
    assert not {"torch", "transformers", "datasets"} & set(loaded)


def test_operators_and_objective_need_no_transformers():
    assert "transformers" not in loaded_after("from codingrate import objective, operators\nassert operators.MSSA")


@pytest.mark.parametrize(
    "module",
    [codingrate, codingrate.models, codingrate.data, codingrate.evaluation, codingrate.inspection,
     codingrate.objective, codingrate.operators, codingrate.recipes, codingrate.tasks, codingrate.runs,
     codingrate.theory, codingrate.explorer, codingrate.bench],
    ids=lambda module: module.__name__,
)  # fmt: skip
def test_every_public_name_is_there(module):
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_public_name_is_that_of_a_submodule():
    root = Path(codingrate.__file__).parent
    for stub in root.rglob("__init__.pyi"):
        imports = [
            node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom) and node.module
        ]
        names = {alias.name for node in imports for alias in node.names}
        modules = {path.stem for path in stub.parent.iterdir()}
        assert not names & modules, "Python would replace the name by the module when this is imported"


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match=r"codingrate attribute creat_model$"):
        codingrate.creat_model  # noqa: B018


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert codingrate.__version__ == version("codingrate")

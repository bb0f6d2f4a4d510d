"""Importing the package costs next to nothing, and its names are there when asked for."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import codingrate

HEAVY = ("torch", "transformers", "numpy", "sklearn", "PIL", "pydantic", "datasets")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import codingrate", HEAVY),
        ("import codingrate\nassert 'crate-tiny-patch16-224' in codingrate.list_models('crate-*')", HEAVY),
        (
            "from codingrate import recipes\nassert 'digits' in recipes.recipe_names()",
            ("torch", "transformers", "datasets"),
        ),
        ("from codingrate import objective, operators\nassert operators.MSSA", ("transformers",)),
    ],
    ids=["package", "models", "recipes", "operators"],
)
def test_little_is_loaded(code, absent):
    script = f"{code}\nimport sys\nprint([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


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


def test_an_unknown_name_is_refused_as_python_does_and_the_version_is_that_of_the_distribution():
    with pytest.raises(AttributeError, match=r"creat_model$"):
        codingrate.creat_model  # noqa: B018
    assert codingrate.__version__ == version("codingrate")

"""Modules that are compiled have no classes that mypyc changes without an error."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def choices() -> dict[str, tuple[str, ...]]:
    """Return the lists of modules in ``setup.py``, which cannot be imported."""
    found = {}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                assert isinstance(target, ast.Name)
                found[target.id] = ast.literal_eval(node.value)
    return found


def found(pattern: str) -> list[Path]:
    """Find modules by the paths that they have in an installation."""
    return list(ROOT.glob(pattern.removeprefix("dandelion/") if "backends" in pattern else pattern))


def compiled() -> list[str]:
    lists = choices()
    paths = {path for pattern in lists["COMPILED"] for path in found(pattern)}
    paths -= {ROOT / path for path in lists["INTERPRETED"]}
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.stem != "__init__")


def test_each_name_is_a_module() -> None:
    lists = choices()
    for pattern in (*lists["COMPILED"], *lists["INTERPRETED"]):
        assert found(pattern), pattern


@pytest.mark.parametrize("path", compiled())
def test_no_class_has_arguments(path: str) -> None:
    """mypyc calls the metaclass without them: a record would have no order, or could be changed."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ClassDef):
            arguments = [one.arg for one in node.keywords if one.arg != "metaclass"]
            assert not arguments, f"{node.name} has {arguments}"
            bases = {ast.unparse(base) for base in node.bases}
            assert "msgspec.Struct" not in bases, f"{node.name} is a record of msgspec"


@pytest.mark.parametrize("path", compiled())
def test_no_function_is_a_coroutine(path: str) -> None:
    """A compiled one throws with three arguments, which Python 3.12 deprecates."""
    coroutines = [
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    assert not coroutines

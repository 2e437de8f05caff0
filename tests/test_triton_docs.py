"""docs/triton.md: its programs run, and make what the text says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, RegistrationDocument, content
from dandelion.node import Node, Settings

pytest.importorskip("triton", reason="the extra 'export' is not installed")

TEXT = (Path(__file__).resolve().parent.parent / "docs/triton.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, Any]:
    """What the programs of the page define, run one after the other as one module."""
    program = folder / "page.py"  # Triton reads the source of kernels from their file
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.S)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        return runpy.run_path(str(program))


def test_the_functions_can_be_registered(names: dict[str, Any]) -> None:
    with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
        for name, symbol in (("double", "function"), ("layer", "layer")):
            (registered,) = node.register(names[symbol])
            assert registered.name == name


def test_the_document_is_stored(names: dict[str, Any], folder: Path) -> None:
    stored = msgspec.json.decode((folder / "double.json").read_bytes(), type=RegistrationDocument)
    assert [f.name for f in stored.functions] == ["double"]


def test_constants_can_stay_on_the_device(names: dict[str, Any]) -> None:
    layer: FunctionDocument = names["layer"]
    (code,) = layer.code
    config = bp.parse_blueprint(content(code.main).bytes())
    assert config.blueprint.weights == ("w",)
    assert [way.value for way in config.kernels[0].access[:3]] == ["read", "read", "both"]
    assert [c.arch for c in config.modules[0].code] == ["sm_90", "gfx942"]


def test_loads_of_the_example_are_pipelined(names: dict[str, Any]) -> None:
    """Four stages of both tiles."""
    (code,) = names["layer"].code
    config = bp.parse_blueprint(content(code.main).bytes())
    assert config.modules[0].code[0].shared_mem_bytes == 4 * (64 * 64 + 64 * 128) * 2

"""Imports go down the layers of ARCHITECTURE.md, and never to a backend or a store."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [
    ["errors", "extension_modules"],
    ["search_path", "entry_points", "interrupts", "regular_files"],
    ["addresses"],
    ["checked_resolver"],
    ["deadline", "limits", "polling", "priority", "sizes", "tenant_places", "timers"],
    ["trace_context"],
    ["call_logs"],
    ["markup"],
    ["timeline", "progress", "invocation_totals"],
    ["traces"],
    ["confinement"],
    ["arrays"],
    ["json_values"],
    ["previews"],
    ["data"],
    ["set_values", "invocation_result"],
    ["attached_files", "call_values", "own_modules"],
    ["failures"],
    ["function"],
    ["packages"],
    ["blobs"],
    ["secrets"],
    ["blueprint"],
    ["dataflow"],
    ["memory"],
    ["driver"],
    ["catalog"],
    ["namespaces"],
    ["tokens"],
    ["contents"],
    ["asynchronous"],
    ["documents"],
    ["export"],
    ["capture"],
    ["decorators"],
    ["recording"],
    ["planned_changes"],
    ["registration"],
    ["dispatcher"],
    ["fusion"],
    ["controllers"],
    ["scheduler"],
    ["policies"],
    ["settings", "engine_process"],
    ["capacity", "activity", "shared_regions"],
    ["span_export"],
    ["executors"],
    ["testing"],
    ["node"],
    ["cluster"],
    ["frontend"],
    ["frontend_process"],
    ["replay"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or "dandelion" not in path.relative_to(ROOT).parts[:1], path
            yield "." * node.level + (node.module or "")


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "dandelion").parts
    return parts[0] if len(parts) > 1 else path.stem


def engine_files() -> list[Path]:
    return [p for p in sorted((ROOT / "dandelion").rglob("*.py")) if p.parent.name != "__pycache__"]


def test_every_engine_file_is_in_a_layer() -> None:
    unknown = {layer_of(p) for p in engine_files()} - LEVEL.keys() - {"__init__"}
    assert not unknown


@pytest.mark.parametrize("path", engine_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    layer = layer_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "dandelion" or len(parts) < 2 or layer == "__init__":
            continue
        target = parts[1]
        assert target not in ("backends", "registry", "compositions", "bench"), (
            f"{path} imports {name}"
        )
        assert LEVEL[target] <= LEVEL[layer], f"{path} ({layer}) imports {name}, a layer above it"


@pytest.mark.parametrize("folder", ["backends", "registry", "compositions", "bench"])
def test_mapped_folders_have_one_name(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imports(path):
            assert name.split(".")[0] not in ("backends", "registry", "compositions", "bench"), path
